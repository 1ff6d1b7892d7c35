"""What the tests of quotas share: both implementations, and a clock that they turn."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from tests.services.valkey import Valkey

from loraplex.tenants.quotas import (
    Limits,
    MemoryQuotas,
    Quotas,
    Reservation,
    TenantLimits,
)
from loraplex.tenants.quotas_redis import RedisQuotas

DEFAULTS = Limits(requests_per_minute=6, tokens_per_minute=600, concurrency=3)
NO_OWN_LIMITS = TenantLimits()
LEASE_S = 100.0
SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS


class Clock:
    """Nanoseconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now_ns = 7 * SECOND_NS

    def __call__(self) -> int:
        return self.now_ns

    def now_ms(self) -> int:
        return self.now_ns // 1_000_000

    def pass_s(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND_NS)


OpenQuotas = Callable[[Clock], AbstractAsyncContextManager[Quotas]]


@asynccontextmanager
async def memory_quotas(clock: Clock) -> AsyncIterator[Quotas]:
    yield MemoryQuotas(DEFAULTS, clock, LEASE_S)


def quotas_in(valkey: Valkey) -> OpenQuotas:
    """Opens quotas in this server, which then holds nothing."""

    @asynccontextmanager
    async def redis_quotas(clock: Clock) -> AsyncIterator[Quotas]:
        valkey.client.flushall()
        quotas = RedisQuotas.open(valkey.url, DEFAULTS, LEASE_S, clock.now_ms)
        yield quotas
        await quotas.close()

    return redis_quotas


def ask(
    request_id: str,
    tokens: int = 1,
    tenant_id: str = "a",
    limits: TenantLimits = NO_OWN_LIMITS,
    slots: int = 1,
) -> Reservation:
    return Reservation(request_id, tenant_id, limits, tokens, slots)
