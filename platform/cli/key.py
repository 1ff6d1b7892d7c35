"""`loraplex key`: the API keys of a tenant."""

import secrets
from datetime import datetime
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
from loraplex.platform.cli.key_output import ExpiresInDays, expiry, print_keys, print_minted

if TYPE_CHECKING:
    from loraplex.tenants.api_keys import KeyRecord
    from loraplex.tenants.key_text import MintedKey

app = typer.Typer(help="API keys of a tenant.")


@app.command()
def create(
    tenant: TenantName,
    label: Annotated[str, typer.Option(help="What the key is for.")] = "",
    expires_in_days: ExpiresInDays = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Make a key and show it, this once."""

    async def work(context: CommandContext) -> "MintedKey":
        from loraplex.tenants import api_keys, directory
        from loraplex.tenants.secret import confirm_secret

        pepper = context.secret()
        expires_at = expiry(context.now, expires_in_days)
        async with context.database.session() as session:
            await confirm_secret(session, pepper)
            owner = await directory.get_by_name(session, tenant)
            return await api_keys.mint(
                session, owner, label, pepper, context.now, secrets.token_bytes, expires_at
            )

    print_minted(run(work, data_dir, database_url), tenant=tenant, as_json=as_json)


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
    print_keys(
        keys,
        now,
        as_json=as_json,
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
