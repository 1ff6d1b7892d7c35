"""`loraplex admin-key`: keys of the operator, for the admin API and the console."""

import secrets
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.context import AsJson, CommandContext, DatabaseUrl, DataDir, run
from loraplex.platform.cli.key_output import ExpiresInDays, expiry, print_keys, print_minted

if TYPE_CHECKING:
    from loraplex.tenants.admin_keys import AdminKeyRecord
    from loraplex.tenants.key_text import MintedKey

app = typer.Typer(help="Keys of the operator, for the admin API and the console.")


@app.command()
def create(
    label: Annotated[str, typer.Option(help="Who or what the key is for.")] = "",
    role: Annotated[str, typer.Option(help="owner, operator, finance or read_only.")] = "owner",
    expires_in_days: ExpiresInDays = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Make an admin key and show it, this once."""

    async def work(context: CommandContext) -> "MintedKey":
        from loraplex.tenants import admin_keys
        from loraplex.tenants.secret import confirm_secret

        pepper = context.secret()
        expires_at = expiry(context.now, expires_in_days)
        async with context.database.session() as session:
            await confirm_secret(session, pepper)
            return await admin_keys.create(
                session, context.act(), label, role, pepper, secrets.token_bytes, expires_at
            )

    print_minted(run(work, data_dir, database_url), as_json=as_json)


@app.command("list")
def list_(
    as_json: AsJson = False, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """List the admin keys; the keys themselves are not kept and cannot be shown."""

    async def work(context: CommandContext) -> "tuple[list[AdminKeyRecord], datetime]":
        from loraplex.tenants import admin_keys

        async with context.database.reader() as session:
            return await admin_keys.list_keys(session), context.now

    keys, now = run(work, data_dir, database_url)
    print_keys(
        keys,
        now,
        as_json=as_json,
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
            await admin_keys.revoke(session, context.act(), key_id)

    run(work, data_dir, database_url)
    typer.echo(f"Revoked admin key {key_id}.")
