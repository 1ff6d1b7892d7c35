"""`loraplex key`: the API keys of a tenant."""

import secrets
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.context import (
    AsJson,
    CommandContext,
    DatabaseUrl,
    DataDir,
    TenantName,
    run,
)
from loraplex.platform.cli.output import print_json, print_table

if TYPE_CHECKING:
    from loraplex.tenants.api_keys import KeyRecord
    from loraplex.tenants.key_text import MintedKey

app = typer.Typer(help="API keys of a tenant.")


@app.command()
def create(
    tenant: TenantName,
    label: Annotated[str, typer.Option(help="What the key is for.")] = "",
    expires_in_days: Annotated[int | None, typer.Option(min=1, help="Default: never.")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Make a key and show it, this once."""

    async def work(context: CommandContext) -> "MintedKey":
        from loraplex.tenants import api_keys, directory
        from loraplex.tenants.secret import confirm_secret

        pepper = context.secret()
        expires_at = expires_in_days and context.now + timedelta(days=expires_in_days)
        async with context.database.session() as session:
            await confirm_secret(session, pepper)
            owner = await directory.get_by_name(session, tenant)
            return await api_keys.mint(
                session, owner, label, pepper, context.now, secrets.token_bytes, expires_at or None
            )

    minted = run(work, data_dir, database_url)
    if as_json:
        print_json([{"tenant": tenant, "key_id": minted.key_id, "key": minted.text}])
        return
    typer.echo(minted.text)
    typer.echo("This key is shown once and kept nowhere: store it now.", err=True)


@app.command("list")
def list_(
    tenant: TenantName,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """List the keys of a tenant; the keys themselves are not kept and cannot be shown."""

    async def work(context: CommandContext) -> "tuple[list[KeyRecord], datetime]":
        from loraplex.tenants import api_keys, directory

        async with context.database.reader() as session:
            owner = await directory.get_by_name(session, tenant)
            return await api_keys.list_keys(session, owner.id), context.now

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
        empty=f"The tenant has no keys; make one with: loraplex key create {tenant}",
    )


@app.command()
def revoke(
    tenant: TenantName,
    key_id: Annotated[str, typer.Argument(help="As `key list` shows it.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Revoke a key for ever."""

    async def work(context: CommandContext) -> None:
        from loraplex.tenants import api_keys, directory

        async with context.database.session() as session:
            owner = await directory.get_by_name(session, tenant)
            await api_keys.revoke(session, owner.id, key_id, context.now)

    run(work, data_dir, database_url)
    typer.echo(f"Revoked key {key_id}.")


def status_of(key: "KeyRecord", now: datetime) -> str:
    """Whether a key is accepted: `active`, `expired` or `revoked`."""
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= now:
        return "expired"
    return "active"
