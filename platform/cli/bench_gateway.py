"""`loraplex bench gateway`."""

import asyncio
import math
import os
import platform
from dataclasses import asdict
from typing import Annotated

import typer

from loraplex.platform.cli.context import AsJson, failure, reporting_errors
from loraplex.platform.cli.output import print_json, print_table, show_progress

MAX_FLAT_TOKENS = 4000
"""Of a stream; more would not fit what a gateway keeps for a client that does not read."""
Database = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        help="Database for the bench alone; it leaves a tenant there. Default: an SQLite file that "
        "is removed.",
        show_default=False,
    ),
]
Redis = Annotated[
    str | None,
    typer.Option(help="Store that gateways share. Default: in memory.", show_default=False),
]


def gateway(
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="Of each part.")] = 10.0,
    clients: Annotated[int, typer.Option(min=1, max=512, help="Requests open at a time.")] = 32,
    rate: Annotated[float, typer.Option(min=1, max=10_000, help="Requests a second.")] = 300.0,
    streams: Annotated[int, typer.Option(min=1, max=512, help="Streams at a time.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, max=20, help="Runs of the streams.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of the arrivals.")] = 0,
    database_url: Database = None,
    redis_url: Redis = None,
    as_json: AsJson = False,
) -> None:
    """Measure a gateway alone: admissions, and processor time per request and streamed token."""
    load_average = os.getloadavg()[0]
    from loraplex.platform.bench.errors import BenchFailed
    from loraplex.platform.bench.gateway.run import Plan, measure_gateway
    from loraplex.platform.bench.gateway.subject import Stores

    plan = Plan(
        duration_s=seconds,
        num_clients=clients,
        rate_per_s=rate,
        num_streams=streams,
        paced_tokens=math.ceil(seconds * 25),
        flat_tokens=min(math.ceil(seconds * 100), MAX_FLAT_TOKENS),
        repeats=repeats,
        seed=seed,
    )
    with reporting_errors():
        try:
            stores = Stores(database_url, redis_url)
            costs = asyncio.run(measure_gateway(plan, stores, show_progress))
        except BenchFailed as error:
            raise failure(str(error)) from None
    typer.echo("", err=True)
    if as_json:
        print_json([asdict(costs)])
        return
    typer.echo(_machine(load_average))
    print_table(
        ("WHAT", "VALUE"),
        [
            ("admissions a second", costs.admits_per_s),
            (f"admission at {rate:g} a second, P99 ms", costs.admit_p99_ms),
            ("reservations a second by the store's scripts", costs.lua_per_s),
            ("processor time of a request, us", costs.cpu_us_per_request),
            ("processor time of a token, paced, us", costs.cpu_us_per_token_paced),
            ("processor time of a token, flat out, us", costs.cpu_us_per_token_flat_out),
        ],
        empty="Nothing was measured.",
    )


def _machine(load_average: float) -> str:
    """What it ran on: a number without it means nothing."""
    from loraplex.platform.processor import cpu_name

    return (
        f"{cpu_name()}, cores: {len(os.sched_getaffinity(0))}, "
        f"Python {platform.python_version()}, load average before {load_average:.1f}"
    )
