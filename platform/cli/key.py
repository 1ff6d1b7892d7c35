"""`loraplex key`: the API keys of a tenant."""

import secrets
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
from loraplex.platform.cli.key_output import ExpiresInDays, expiry, print_keys, print_minted

if TYPE_CHECKING:
    from loraplex.tenants.api_keys import KeyRecord
    from loraplex.tenants.key_text import MintedKey

app = typer.Typer(help="API keys of a tenant.")

KeyId = Annotated[str, typer.Argument(metavar="KEY_ID", help="As `key list` shows it.")]
Project = Annotated[str, typer.Option(help="Name or id of its project.")]
Role = Annotated[str, typer.Option(help="tenant_admin, developer or read_only.")]
Permissions = Annotated[
    list[str] | None,
    typer.Option("--permission", help="May do this alone, of what its role may; repeat for more."),
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model", help="May call this alone, such as acme/support or acme/support@3; so on."
    ),
]
Addresses = Annotated[
    list[str] | None,
    typer.Option("--address", help="Is for requests from this network, such as 10.0.0.0/8; so on."),
]


@app.command()
def create(
    tenant: TenantName,
    label: Annotated[str, typer.Option(help="What the key is for.")] = "",
    project: Project = "default",
    role: Role = "developer",
    permission: Permissions = None,
    model: Models = None,
    address: Addresses = None,
    expires_in_days: ExpiresInDays = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Make a key and show it, this once."""
    scopes = _named(role, permission, model, address)

    async def work(context: CommandContext) -> "MintedKey":
        from loraplex.tenants import directory, key_changes
        from loraplex.tenants.key_scopes import scopes_from
        from loraplex.tenants.secret import confirm_secret

        pepper = context.secret()
        expires_at = expiry(context.now, expires_in_days)
        wanted = key_changes.NewKey(label, project, scopes_from(scopes), expires_at)
        async with context.database.session() as session:
            await confirm_secret(session, pepper)
            owner = await directory.get_by_name(session, tenant)
            return await key_changes.create(
                session, context.grantor(), owner, wanted, pepper, secrets.token_bytes
            )

    print_minted(run(work, data_dir, database_url), tenant=tenant, as_json=as_json)


@app.command("list")
def list_(
    tenant: TenantName,
    project: Annotated[str | None, typer.Option(help="Of this project alone.")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """List the keys of a tenant; the keys themselves are not kept and cannot be shown."""

    async def work(context: CommandContext) -> "tuple[list[KeyRecord], datetime]":
        from loraplex.tenants import api_keys, directory, projects

        async with context.database.reader() as session:
            owner = await directory.get_by_name(session, tenant)
            project_id = project and (await projects.get(session, owner.id, project)).id
            return await api_keys.list_keys(session, owner.id, project_id), context.now

    keys, now = run(work, data_dir, database_url)
    print_keys(
        keys,
        now,
        as_json=as_json,
        empty=f"The tenant has no keys; make one with: loraplex key create {tenant}",
    )


@app.command()
def scope(
    tenant: TenantName,
    key_id: KeyId,
    project: Annotated[str | None, typer.Option(help="Move it to this project.")] = None,
    role: Annotated[str | None, typer.Option(help="tenant_admin, developer or read_only.")] = None,
    permission: Permissions = None,
    model: Models = None,
    address: Addresses = None,
    all_: Annotated[
        list[str] | None,
        typer.Option(
            "--all", metavar="permissions|models|addresses", help="Narrow it by these no more."
        ),
    ] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Change what a key may, from its next request on; what is not named stays."""
    scopes = _named(role, permission, model, address)
    for name in all_ or ():
        if name not in ("permissions", "models", "addresses"):
            raise typer.BadParameter(f"--all is permissions, models or addresses, not {name!r}.")
        scopes[name] = None
    if not scopes and project is None:
        raise typer.BadParameter("name what is to change, such as --model acme/support.")

    async def work(context: CommandContext) -> None:
        from loraplex.tenants import directory, key_changes

        async with context.database.session() as session:
            owner = await directory.get_by_name(session, tenant)
            wanted = key_changes.KeyChange(
                project=key_changes.SAME if project is None else project, scopes=scopes
            )
            await key_changes.change(session, context.grantor(), owner.id, key_id, wanted)

    run(work, data_dir, database_url)
    typer.echo(f"Changed key {key_id}.")


@app.command()
def rotate(
    tenant: TenantName,
    key_id: KeyId,
    grace_hours: Annotated[
        float,
        typer.Option(min=0, max=720, help="How long the secret before opens, too; 0 ends it now."),
    ] = 24.0,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Give a key another secret under its id and show it, this once."""

    async def work(context: CommandContext) -> "MintedKey":
        from loraplex.tenants import directory, key_changes
        from loraplex.tenants.secret import confirm_secret

        pepper, grace = context.secret(), timedelta(hours=grace_hours)
        async with context.database.session() as session:
            await confirm_secret(session, pepper)
            owner = await directory.get_by_name(session, tenant)
            return await key_changes.rotate(
                session, context.grantor(), owner.id, key_id, grace, pepper, secrets.token_bytes
            )

    print_minted(run(work, data_dir, database_url), tenant=tenant, as_json=as_json)


@app.command("revoke-previous")
def revoke_previous(
    tenant: TenantName,
    key_id: KeyId,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """End the grace of the secret that a key had before its last rotation."""

    async def work(context: CommandContext) -> None:
        from loraplex.tenants import directory, key_changes

        async with context.database.session() as session:
            owner = await directory.get_by_name(session, tenant)
            await key_changes.revoke_previous(session, context.act(), owner.id, key_id)

    run(work, data_dir, database_url)
    typer.echo(f"The secret that key {key_id} had before opens no more.")


@app.command()
def revoke(
    tenant: TenantName,
    key_id: KeyId,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Revoke a key for ever."""

    async def work(context: CommandContext) -> None:
        from loraplex.tenants import directory, key_changes

        async with context.database.session() as session:
            owner = await directory.get_by_name(session, tenant)
            await key_changes.revoke(session, context.act(), owner.id, key_id)

    run(work, data_dir, database_url)
    typer.echo(f"Revoked key {key_id}.")


def _named(
    role: str | None,
    permissions: list[str] | None,
    models: list[str] | None,
    addresses: list[str] | None,
) -> dict[str, object]:
    """The scopes that the options name."""
    lists = {"permissions": permissions, "models": models, "addresses": addresses}
    named: dict[str, object] = {name: values for name, values in lists.items() if values}
    return named if role is None else {"role": role, **named}
