"""`loraplex tenant`: who may use the platform, and how much of it."""

import secrets
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loraplex.platform.cli import tenant_delete
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

    from loraplex.tenants.directory import TenantRecord
    from loraplex.tenants.limit_changes import StoredLimit

app = typer.Typer(help="Tenants: who may use the platform, and how much of it.")

REQUESTS = "Most requests that it starts in a minute."
TOKENS = "Most prompt and output tokens in a minute."
CONCURRENCY = "Most requests that run at a time."
DEADLINE = "Refuse requests whose first token cannot come within so many ms."
STORAGE = "Most bytes that its adapters take in the store."
RANK = "Largest rank of an adapter."
MODULES = "Most modules that one adapter changes."
FLOOR = (
    "Bytes of the memory for adapters that others cannot push its adapters out of. "
    "All floors and pins together get half of that memory: `adapter top` lists one "
    "that does not hold."
)
CAP = "Most bytes that its adapters take of the memory for adapters; larger ones are refused."
PIN = "Most bytes of adapters that it pins in memory."
HOST_FLOOR = "The same as --adapter-floor-bytes, of the host's memory behind the device."
HOST_CAP = "The same as --adapter-cap-bytes, of the host's memory behind the device."
ServiceTiers = Annotated[
    str | None,
    typer.Option(metavar="TIER,…", help="That its requests may ask for: priority,default,flex."),
]
TimeZone = Annotated[
    str | None, typer.Option(help="In which its months begin, such as Europe/Berlin.")
]
Reason = Annotated[str, typer.Option(help="Why; the audit log tells it.")]
NEW = "N|default"
"""`default` takes the own limit away."""
UNLIMITED = MappingProxyType(
    {
        "ttft_deadline_ms": "none",
        "adapter_storage_bytes": "no limit",
        "adapter_max_rank": "no limit",
        "adapter_max_modules": "no limit",
        "adapter_floor_bytes": "none",
        "adapter_cap_bytes": "no limit",
        "adapter_pin_bytes": "0",
        "adapter_host_floor_bytes": "none",
        "adapter_host_cap_bytes": "no limit",
    }
)
"""What holds where a tenant has none of its own; for others that is the platform's default."""


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="1 to 40 characters of a-z, 0-9 and '-'.")],
    weight: Annotated[float, typer.Option(help="Share, relative to other tenants.")] = 1.0,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help=REQUESTS)] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, help=TOKENS)] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help=CONCURRENCY)] = None,
    ttft_deadline_ms: Annotated[int | None, typer.Option(min=1, help=DEADLINE)] = None,
    adapter_storage_bytes: Annotated[int | None, typer.Option(min=1, help=STORAGE)] = None,
    adapter_max_rank: Annotated[int | None, typer.Option(min=1, help=RANK)] = None,
    adapter_max_modules: Annotated[int | None, typer.Option(min=1, help=MODULES)] = None,
    adapter_floor_bytes: Annotated[int | None, typer.Option(min=1, help=FLOOR)] = None,
    adapter_cap_bytes: Annotated[int | None, typer.Option(min=1, help=CAP)] = None,
    adapter_pin_bytes: Annotated[int | None, typer.Option(min=1, help=PIN)] = None,
    adapter_host_floor_bytes: Annotated[int | None, typer.Option(min=1, help=HOST_FLOOR)] = None,
    adapter_host_cap_bytes: Annotated[int | None, typer.Option(min=1, help=HOST_CAP)] = None,
    service_tiers: ServiceTiers = None,
    time_zone: TimeZone = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Add a tenant."""

    async def work(context: CommandContext) -> "TenantRecord":
        from loraplex.tenants import directory
        from loraplex.tenants.limits import AdapterLimits, TenantLimits

        limits = TenantLimits(requests_per_minute, tokens_per_minute, concurrency, ttft_deadline_ms)
        adapters = AdapterLimits(
            adapter_storage_bytes,
            adapter_max_rank,
            adapter_max_modules,
            adapter_floor_bytes,
            adapter_cap_bytes,
            adapter_pin_bytes,
            adapter_host_floor_bytes,
            adapter_host_cap_bytes,
        )
        async with context.database.session() as session:
            wanted = directory.NewTenant(
                name, weight, limits, adapters, tiers_of(service_tiers), time_zone
            )
            return await directory.add(session, context.act(), wanted, secrets.token_bytes)

    tenant = run(work, data_dir, database_url)
    typer.echo(f"Created tenant {tenant.name} ({tenant.id}).")


@app.command("set")
def set_(
    name: TenantName,
    weight: Annotated[float | None, typer.Option(help="Share, relative to others.")] = None,
    requests_per_minute: Annotated[str | None, typer.Option(metavar=NEW, help=REQUESTS)] = None,
    tokens_per_minute: Annotated[str | None, typer.Option(metavar=NEW, help=TOKENS)] = None,
    concurrency: Annotated[str | None, typer.Option(metavar=NEW, help=CONCURRENCY)] = None,
    ttft_deadline_ms: Annotated[str | None, typer.Option(metavar=NEW, help=DEADLINE)] = None,
    adapter_storage_bytes: Annotated[str | None, typer.Option(metavar=NEW, help=STORAGE)] = None,
    adapter_max_rank: Annotated[str | None, typer.Option(metavar=NEW, help=RANK)] = None,
    adapter_max_modules: Annotated[str | None, typer.Option(metavar=NEW, help=MODULES)] = None,
    adapter_floor_bytes: Annotated[str | None, typer.Option(metavar=NEW, help=FLOOR)] = None,
    adapter_cap_bytes: Annotated[str | None, typer.Option(metavar=NEW, help=CAP)] = None,
    adapter_pin_bytes: Annotated[str | None, typer.Option(metavar=NEW, help=PIN)] = None,
    adapter_host_floor_bytes: Annotated[
        str | None, typer.Option(metavar=NEW, help=HOST_FLOOR)
    ] = None,
    adapter_host_cap_bytes: Annotated[str | None, typer.Option(metavar=NEW, help=HOST_CAP)] = None,
    service_tiers: ServiceTiers = None,
    time_zone: TimeZone = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Change a tenant's weight or limits, for requests from now on; the rest stays.

    `default` takes the own limit away.
    """
    requests = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "concurrency": concurrency,
        "ttft_deadline_ms": ttft_deadline_ms,
    }
    adapters = {
        "adapter_storage_bytes": adapter_storage_bytes,
        "adapter_max_rank": adapter_max_rank,
        "adapter_max_modules": adapter_max_modules,
        "adapter_floor_bytes": adapter_floor_bytes,
        "adapter_cap_bytes": adapter_cap_bytes,
        "adapter_pin_bytes": adapter_pin_bytes,
        "adapter_host_floor_bytes": adapter_host_floor_bytes,
        "adapter_host_cap_bytes": adapter_host_cap_bytes,
    }
    named, of_adapters = _changed(requests), _changed(adapters)
    others = (weight, service_tiers, time_zone)
    if not named and not of_adapters and all(other is None for other in others):
        raise typer.BadParameter("name what is to change, such as --concurrency 8.")

    async def work(context: CommandContext) -> "tuple[TenantRecord, list[StoredLimit]]":
        from loraplex.tenants import directory

        async with context.database.session() as session:
            tenant = await directory.get_by_name(session, name)
            wanted = directory.TenantChange(
                weight, named, of_adapters, tiers_of(service_tiers), time_zone
            )
            changed = await directory.change(session, context.act(), tenant.id, wanted)
            return changed, await _own_limits(session, changed.id)

    _show(*run(work, data_dir, database_url), as_json=as_json)


@app.command()
def show(
    name: TenantName,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Show a tenant with all its limits."""

    async def work(context: CommandContext) -> "tuple[TenantRecord, list[StoredLimit]]":
        from loraplex.tenants import directory

        async with context.database.reader() as session:
            tenant = await directory.get_by_name(session, name)
            return tenant, await _own_limits(session, tenant.id)

    _show(*run(work, data_dir, database_url), as_json=as_json)


@app.command("list")
def list_(
    as_json: AsJson = False, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """List all tenants."""

    async def work(context: CommandContext) -> "list[TenantRecord]":
        from loraplex.tenants import directory

        async with context.database.reader() as session:
            return await directory.list_tenants(session)

    tenants = run(work, data_dir, database_url)
    if as_json:
        print_json(_row(tenant) for tenant in tenants)
        return
    print_table(
        ("NAME", "STATUS", "WEIGHT", "REQUESTS/MIN", "TOKENS/MIN", "CONCURRENCY", "CREATED"),
        (
            (tenant.name, tenant.status, tenant.weight, *_limits(tenant), tenant.created_at)
            for tenant in tenants
        ),
        empty="There are no tenants; add one with: loraplex tenant create NAME",
    )


@app.command()
def suspend(
    name: TenantName,
    reason: Reason = "",
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Refuse the keys of a tenant until it is resumed.

    Open requests are broken off at once and charged for what ran.
    """

    async def work(context: CommandContext) -> None:
        from loraplex.tenants import directory

        async with context.database.session() as session:
            tenant = await directory.get_by_name(session, name)
            await directory.suspend(session, context.act(), tenant.id, reason)

    run(work, data_dir, database_url)
    typer.echo(f"Suspended tenant {name}: its keys are refused, and open requests broken off.")


app.command("delete")(tenant_delete.delete)


@app.command()
def resume(
    name: TenantName,
    reason: Reason = "",
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Accept the keys of a suspended tenant again."""

    async def work(context: CommandContext) -> None:
        from loraplex.tenants import directory

        async with context.database.session() as session:
            tenant = await directory.get_by_name(session, name)
            await directory.resume(session, context.act(), tenant.id, reason)

    run(work, data_dir, database_url)
    typer.echo(f"Resumed tenant {name}: its keys are accepted again.")


def tiers_of(text: str | None) -> tuple[str, ...] | None:
    """The tiers of an option."""
    return None if text is None else tuple(part.strip() for part in text.split(","))


def _limits(tenant: "TenantRecord") -> tuple[str, str, str]:
    limits = tenant.limits
    values = (limits.requests_per_minute, limits.tokens_per_minute, limits.concurrency)
    shown = ["default" if value is None else str(value) for value in values]
    return shown[0], shown[1], shown[2]


def _changed(options: dict[str, str | None]) -> dict[str, int | None]:
    """The limits that were named. Raises BadParameter."""
    changed: dict[str, int | None] = {}
    for name, text in options.items():
        if text is None:
            continue
        if text != "default" and not (text.isascii() and text.isdecimal()):
            option = name.replace("_", "-")
            raise typer.BadParameter(f"--{option} is a whole number or default, not {text!r}.")
        changed[name] = None if text == "default" else int(text)
    return changed


def _row(tenant: "TenantRecord") -> dict[str, Any]:
    """A tenant as one line of JSON, with all limits together."""
    fields = asdict(tenant)
    fields["limits"] |= fields.pop("adapters")
    del fields["earlier_time_zones"]
    return fields


async def _own_limits(session: "AsyncSession", tenant_id: str) -> "list[StoredLimit]":
    """Those of the tenant as a whole, also such as `limit set` alone sets."""
    from loraplex.tenants import limit_changes

    found = await limit_changes.list_limits(session, tenant_id)
    return [stored for stored in found if stored.scope == "tenant"]


def _show(tenant: "TenantRecord", own: "list[StoredLimit]", *, as_json: bool) -> None:
    row = _row(tenant)
    row["limits"] |= {stored.dimension: stored.limit.value for stored in own}
    if as_json:
        print_json([row])
        return
    told = {stored.dimension: _told(stored) for stored in own}
    limits = row.pop("limits")
    row["service_tiers"] = ", ".join(tenant.service_tiers)
    shown = {name: value or UNLIMITED.get(name, "default") for name, value in limits.items()}
    print_table(("WHAT", "VALUE"), [*row.items(), *(shown | told).items()], empty="")


def _told(stored: "StoredLimit") -> str:
    """Its value, and what else was said of it."""
    limit = stored.limit
    others = (
        None if limit.burst in (None, limit.value) else f"burst {limit.burst}",
        "shadow" if limit.mode == "shadow" else None,
        None if limit.on_store_loss is None else f"{limit.on_store_loss} while the store is away",
    )
    said = ", ".join(other for other in others if other)
    return f"{limit.value} ({said})" if said else str(limit.value)
