"""What the tests of quotas share: all stores, a clock that they turn, limits, requests."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.services.valkey import Valkey
from tests.services.valkey_cluster import ValkeyCluster

from loraplex.tenants.periods import Period
from loraplex.tenants.quotas import Quotas
from loraplex.tenants.quotas_memory import MemoryQuotas
from loraplex.tenants.quotas_redis import RedisQuotas
from loraplex.tenants.reservations import Amounts, Hold, Reservation
from loraplex.tenants.scoped_limits import BudgetPeriod, Dimension, Mode, Scope, ScopedLimit

LEASE_S = 100.0
SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
NOVEMBER = Period(datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC))
DECEMBER = Period(datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self._began = datetime(2026, 11, 20, tzinfo=UTC)
        self.now_ns = 7 * SECOND_NS

    def __call__(self) -> int:
        return self.now_ns

    def now_ms(self) -> int:
        return round(self.now().timestamp() * 1000)

    def now(self) -> datetime:
        return self._began + timedelta(microseconds=self.now_ns // 1000)

    def pass_s(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND_NS)


OpenQuotas = Callable[[Clock], AbstractAsyncContextManager[Quotas]]


@asynccontextmanager
async def memory_quotas(clock: Clock) -> AsyncIterator[Quotas]:
    yield MemoryQuotas(clock, LEASE_S, clock.now)


def quotas_in(server: Valkey | ValkeyCluster, url: str) -> OpenQuotas:
    """Opens quotas in this server or cluster, which then holds nothing."""

    @asynccontextmanager
    async def redis_quotas(clock: Clock) -> AsyncIterator[Quotas]:
        server.client.flushall()
        quotas = RedisQuotas.open(url, LEASE_S, clock.now_ms)
        yield quotas
        await quotas.close()

    return redis_quotas


def limit(
    dimension: Dimension,
    value: int,
    scope: Scope = "tenant",
    *,
    scope_id: str | None = None,
    burst: int | None = None,
    mode: Mode = "enforce",
) -> ScopedLimit:
    """A limit; a budget is of November's first reckoning."""
    has_month = dimension.endswith("month")
    return ScopedLimit(
        scope,
        scope_id or f"{scope}-1",
        dimension,
        value,
        burst or value,
        mode,
        budget=BudgetPeriod(NOVEMBER, 1) if has_month else None,
    )


def of_epoch(budget: ScopedLimit, epoch: int) -> ScopedLimit:
    assert budget.budget is not None
    return replace(budget, budget=replace(budget.budget, epoch=epoch))


REQUESTS = limit("requests_per_minute", 6)
TOKENS = limit("tokens_per_minute", 600)
CHOICES = limit("concurrency", 3)
BASE = (REQUESTS, TOKENS, CHOICES)


def ask(
    request_id: str,
    tokens: int = 1,
    tenant_id: str = "a",
    limits: tuple[ScopedLimit, ...] = BASE,
    *,
    output_tokens: int = 0,
    slots: int = 1,
    cost: int = 0,
) -> Reservation:
    """A request of `tokens` input tokens."""
    worst = Amounts(tokens, output_tokens, cost, slots)
    return Reservation(request_id, tenant_id, limits, worst)


def used(tokens: int, output_tokens: int = 0, cost: int = 0) -> Amounts:
    """What a request took in the end."""
    return Amounts(tokens, output_tokens, cost)


def remaining(hold: Hold) -> list[int]:
    """What is left of each of its limits."""
    return [standing.remaining for standing in hold.standings]
