"""`loraplex limit`: limits of tenants, projects, keys and adapters."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

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
    from sqlalchemy.ext.asyncio import AsyncSession

    from loraplex.tenants.limit_changes import StoredLimit
    from loraplex.tenants.limit_parents import LimitOwner

app = typer.Typer(help="Limits of a tenant, and of its projects, keys and adapters.")

Dimension = Annotated[
    str,
    typer.Argument(
        metavar="DIMENSION",
        help="requests_per_minute, input_tokens_per_minute, output_tokens_per_minute, "
        "tokens_per_minute, concurrency, enqueued_tokens, tokens_per_month or "
        "cost_micros_per_month.",
    ),
]
Project = Annotated[str | None, typer.Option(help="Of this project, by name or id.")]
Key = Annotated[str | None, typer.Option(help="Of this key, by id.")]
Adapter = Annotated[str | None, typer.Option(help="Of this adapter, by name.")]


@app.command("list")
def list_(
    tenant: TenantName,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """List all limits of a tenant and of what it has."""

    async def work(context: CommandContext) -> "list[StoredLimit]":
        from loraplex.tenants import directory, limit_changes

        async with context.database.reader() as session:
            owner = await directory.get_by_name(session, tenant)
            return await limit_changes.list_limits(session, owner.id)

    _show(run(work, data_dir, database_url), as_json=as_json)


@app.command("set")
def set_(
    tenant: TenantName,
    dimension: Dimension,
    value: Annotated[
        int,
        typer.Argument(
            help="Per minute, at a time or per month; money in micros, millionths of the "
            "currency that prices are in."
        ),
    ],
    project: Project = None,
    key: Key = None,
    adapter: Adapter = None,
    burst: Annotated[
        int | None, typer.Option(help="What may be used at once. Default: a minute's worth.")
    ] = None,
    shadow: Annotated[bool, typer.Option("--shadow", help="Refuse nothing; only tell.")] = False,
    on_store_loss: Annotated[
        Literal["local", "open", "closed"] | None,
        typer.Option(help="What holds while the store that gateways share is away."),
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Set a limit of the tenant, or of what an option names, from the next request on."""

    async def work(context: CommandContext) -> "tuple[StoredLimit, str | None]":
        from loraplex.platform.services import default_limits
        from loraplex.tenants import limit_changes, prices
        from loraplex.tenants.limit_changes import NewLimit

        wanted = NewLimit(value, burst, "shadow" if shadow else "enforce", on_store_loss)
        what = limit_changes.dimension_of(dimension)
        defaults = default_limits(context.settings)
        async with context.database.session() as session:
            of = await owner_of(session, tenant, project=project, key=key, adapter=adapter)
            put = await limit_changes.put(session, context.grantor(), of, what, wanted, defaults)
            return put, await prices.unpriced(session, what, context.now)

    put, warning = run(work, data_dir, database_url)
    _show([put], as_json=as_json)
    if warning is not None:
        typer.echo(f"warning: {warning}", err=True)


@app.command()
def remove(
    tenant: TenantName,
    dimension: Dimension,
    project: Project = None,
    key: Key = None,
    adapter: Adapter = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Take a limit away; what stands above it holds, for a tenant the platform's default."""

    async def work(context: CommandContext) -> None:
        from loraplex.tenants import limit_changes

        what = limit_changes.dimension_of(dimension)
        async with context.database.session() as session:
            of = await owner_of(session, tenant, project=project, key=key, adapter=adapter)
            await limit_changes.remove(session, context.grantor(), of, what)

    run(work, data_dir, database_url)
    typer.echo(f"Removed the limit of {dimension}.")


async def owner_of(
    session: "AsyncSession",
    tenant: str,
    *,
    project: str | None,
    key: str | None,
    adapter: str | None,
) -> "LimitOwner":
    """Whose limit it is. Raises CommandFailed where several are named."""
    from loraplex.adapters.registry import registry
    from loraplex.adapters.registry.names import AdapterName
    from loraplex.platform.cli.context import CommandFailed
    from loraplex.tenants import api_keys, directory, projects
    from loraplex.tenants.limit_parents import LimitOwner

    if sum(named is not None for named in (project, key, adapter)) > 1:
        raise CommandFailed("name one of --project, --key and --adapter, or none for the tenant")
    owner = await directory.get_by_name(session, tenant)
    if project is not None:
        found = await projects.get(session, owner.id, project)
        return LimitOwner(owner.id, "project", found.id)
    if key is not None:
        return LimitOwner(owner.id, "key", (await api_keys.get_key(session, owner.id, key)).key_id)
    if adapter is not None:
        await registry.list_all_versions(session, AdapterName(owner.id, adapter))
        return LimitOwner(owner.id, "adapter", adapter)
    return LimitOwner(owner.id, "tenant", owner.id)


def _show(found: "list[StoredLimit]", *, as_json: bool) -> None:
    if as_json:
        rows = (asdict(stored) for stored in found)
        print_json(row | row.pop("limit") for row in rows)
        return
    print_table(
        ("SCOPE", "OF", "DIMENSION", "VALUE", "BURST", "MODE", "STORE LOST"),
        (
            (
                stored.scope,
                stored.scope_id,
                stored.dimension,
                stored.limit.value,
                stored.limit.burst,
                stored.limit.mode,
                stored.limit.on_store_loss,
            )
            for stored in found
        ),
        empty="There are no limits but the platform's defaults.",
    )
