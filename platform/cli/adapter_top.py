"""`loraplex adapter top`: which adapters are where, and why, as it changes."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.context import (
    CommandContext,
    DatabaseUrl,
    DataDir,
    reporting_errors,
    run,
)
from loraplex.platform.cli.output import print_table
from loraplex.platform.cli.worker_access import (
    Document,
    GatewayAccess,
    GatewayUrl,
    KeyFile,
    worker_of,
)

if TYPE_CHECKING:
    from loraplex.engine.residency_protocol import ResidencyReport

_MIB = 1024 * 1024
_COLUMNS = ("MODEL", "TIER", "WHY", "DEVICE MIB", "HOST MIB", "LEASES", "WAITING", "IDLE S")
_CLEAR = "\x1b[H\x1b[2J"
_NUM_EVICTIONS_SHOWN = 5


def top(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per look, on a line.")
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Look once. Default where nobody watches.")
    ] = False,
    every: Annotated[
        float | None, typer.Option(min=0.2, help="Seconds between two looks. Default: 2.")
    ] = None,
    url: GatewayUrl = None,
    key_file: KeyFile = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Show which adapters are on the device, on the host, loading or awaited, and why."""
    if url is None:
        look: Callable[[], Document] = lambda: run(_of_worker, data_dir, database_url)  # noqa: E731  its type is checked
    else:
        look = _of_gateway(url, key_file)
    is_once = once or (every is None and (as_json or not sys.stdout.isatty()))
    while True:
        with reporting_errors():
            seen = look()
        if as_json:
            typer.echo(json.dumps(seen))
        else:
            _print(seen, clears=not is_once)
        if is_once:
            return
        time.sleep(2.0 if every is None else every)


async def _of_worker(context: CommandContext) -> Document:
    """Ask the worker over its stream, and the database for names."""
    from loraplex.platform.residency_view import residency_view

    report = await _ask(context)
    async with context.database.reader() as session:
        return (await residency_view(session, report)).model_dump(mode="json")


async def _ask(context: CommandContext) -> "ResidencyReport":
    async with worker_of(context) as worker:
        report = await worker.residency()
        if report is None:
            raise TimeoutError
    return report


def _of_gateway(url: str, key_file: Path | None) -> Callable[[], Document]:
    gateway = GatewayAccess(url, key_file)
    return lambda: gateway.ask("/admin/v1/residency")


def _print(seen: Document, *, clears: bool) -> None:
    if clears:
        typer.echo(_CLEAR, nl=False)
    for name in ("device", "host"):
        tier = seen["tiers"][name]
        held, capacity = tier["held_bytes"] / _MIB, tier["capacity_bytes"] / _MIB
        typer.echo(
            f"{name:<6}  {held:,.1f} of {capacity:,.1f} MiB, {tier['num_adapters']} adapters"
        )
    for line in _activity(seen):
        typer.echo(line)
    refused = seen["refused"]
    for pin in refused["pins"]:
        typer.echo(f"not pinned, since it would take too much: {pin['model'] or pin['digest']}")
    for tenant in refused["floors"]:
        typer.echo(f"no floor, since it would take too much: {tenant}")
    for tenant in refused["host_floors"]:
        typer.echo(f"no floor of the host, since it would take too much: {tenant}")
    typer.echo("")
    print_table(_COLUMNS, map(_row, seen["adapters"]), "No adapter is in memory or awaited.")


def _activity(seen: Document) -> Iterator[str]:
    """How requests came to their adapters, how fast those come, and what went for what."""
    since = seen["since_start"]
    routes = since["routes"]
    num_all = sum(routes.values())
    shares = (
        f"{route} {num:,} ({100 * num / num_all:.0f} %)" for route, num in routes.items() if num
    )
    yield f"routes  {', '.join(shares) or 'no request ran on an adapter yet'}"
    yield f"link    {_link(seen)}"
    loads, prefetches = since["loads"], since["prefetches"]
    yield (
        f"loads   {loads['store']:,} from the store, {loads['host']:,} from the host; prefetches "
        f"{prefetches['num_started']:,}: {prefetches['num_claimed']:,} needed, "
        f"{prefetches['num_wasted']:,} wasted"
    )
    gone = (
        f"{tier}: {cause} {num:,}"
        for tier, causes in since["evictions"].items()
        for cause, num in causes.items()
        if num
    )
    yield f"evicted {', '.join(gone) or 'nothing yet'}"
    for each in seen["last_evictions"][:_NUM_EVICTIONS_SHOWN]:
        why = f"from {each['tier']} ({each['cause']})"
        yield f"        {_name(each)} {why}, {each['ago_s']:.1f} s ago"


def _link(seen: Document) -> str:
    link = seen["link"]
    limit, measured = link["limit_bytes_per_s"], link["measured_bytes_per_s"]
    parts = [
        "not measured yet" if measured is None else f"{measured / _MIB:,.1f} MiB/s of late",
        "not throttled" if limit is None else f"throttled to {limit / _MIB:,.1f} MiB/s",
        f"{link['in_flight_bytes'] / _MIB:,.1f} MiB on their way",
        f"{seen['num_cold_passes']} requests computed meanwhile",
        f"{seen['num_assistants']} assist processes ready",
    ]
    return ", ".join(parts)


def _name(each: Document) -> str:
    return str(each["model"] or f"{each['tenant']}: {each['digest'][:20]}")


def _row(each: Document) -> tuple[object, ...]:
    loaded = each["loaded_percent"]
    return (
        _name(each),
        each["tier"] if loaded is None else f"{each['tier']} {loaded} %",
        f"{each['why']}, pinned" if each["is_pinned"] and each["why"] != "pinned" else each["why"],
        round(each["device_bytes"] / _MIB, 1),
        round(each["host_bytes"] / _MIB, 1),
        each["leases"],
        each["num_waiting"],
        None if each["idle_s"] is None else round(each["idle_s"], 1),
    )
