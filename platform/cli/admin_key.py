"""`loraplex admin-key`: keys of the operator, for the admin API and the console."""

import secrets
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.context import AsJson, CommandContext, DatabaseUrl, DataDir, run
from loraplex.platform.cli.key import status_of
from loraplex.platform.cli.output import print_json, print_table

if TYPE_CHECKING:
    from loraplex.tenants.api_keys import KeyRecord
    from loraplex.tenants.key_text import MintedKey

app = typer.Typer(help="Keys of the operator, for the admin API and the console.")


@app.command()
def create(
    label: Annotated[str, typer.Option(help="Who or what the key is for.")] = "",
    expires_in_days: Annotated[int | None, typer.Option(min=1, help="Default: never.")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Make an admin key and show it, this once."""

    async def work(context: CommandContext) -> "MintedKey":
        from loraplex.tenants import admin_keys
        from loraplex.tenants.secret import confirm_secret

        pepper = context.secret()
        expires_at = expires_in_days and context.now + timedelta(days=expires_in_days)
        async with context.database.session() as session:
            await confirm_secret(session, pepper)
            return await admin_keys.mint(
                session, label, pepper, context.now, secrets.token_bytes, expires_at or None
            )

    minted = run(work, data_dir, database_url)
    if as_json:
        print_json([{"key_id": minted.key_id, "key": minted.text}])
        return
    typer.echo(minted.text)
    typer.echo("This key is shown once and kept nowhere: store it now.", err=True)


@app.command("list")
def list_(
    as_json: AsJson = False, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """List the admin keys; the keys themselves are not kept and cannot be shown."""

    async def work(context: CommandContext) -> "tuple[list[KeyRecord], datetime]":
        from loraplex.tenants import admin_keys

        async with context.database.reader() as session:
            return await admin_keys.list_keys(session), context.now

    keys, now = run(work, data_dir, database_url)
    if as_json:
        print_json(asdict(key) | {"status": status_of(key, now)} for key in keys)
        return
    print_table(
        ("KEY ID", "LABEL", "STATUS", "CREATED", "LAST USED", "EXPIRES"),
        (
            (
                key.key_id,
                key.label or "-",
                status_of(key, now),
                key.created_at,
                key.last_used_at,
                key.expires_at,
            )
            for key in keys
        ),
        empty="There are no admin keys; make one with: loraplex admin-key create",
    )


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="As `admin-key list` shows it.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Revoke an admin key for ever."""

    async def work(context: CommandContext) -> None:
        from loraplex.tenants import admin_keys

        async with context.database.session() as session:
            await admin_keys.revoke(session, key_id, context.now)

    run(work, data_dir, database_url)
    typer.echo(f"Revoked admin key {key_id}.")
