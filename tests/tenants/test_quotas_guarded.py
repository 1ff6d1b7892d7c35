"""What each limit does while the store that gateways share is away, and after."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from sqlalchemy.exc import TimeoutError as PoolTimeout
from tests.contracts.quota_stores import LEASE_S, Clock, ask, limit, remaining, used
from tests.services.valkey import running_valkey

from loraplex.tenants.errors import (
    DatabaseUnusable,
    QuotaBackendUnavailable,
    QuotaExceeded,
    RequestExceedsLimit,
)
from loraplex.tenants.quotas import InUse
from loraplex.tenants.quotas_guarded import GuardedQuotas
from loraplex.tenants.quotas_memory import MemoryQuotas
from loraplex.tenants.quotas_redis import RedisQuotas
from loraplex.tenants.reservations import Amounts, Hold, Reckoning, Reservation
from loraplex.tenants.scoped_limits import Dimension, Mode, OnStoreLoss, ScopedLimit

REQUESTS = limit("requests_per_minute", 8)
COST = limit("cost_micros_per_month", 1000)
NOTHING_IN_USE = InUse(0, 0, 0, 0)


class SwitchedStore(MemoryQuotas):
    """A shared store that a test takes away."""

    is_away = False

    async def ping(self) -> None:
        if self.is_away:
            raise QuotaBackendUnavailable("nobody answers")

    async def reserve(self, request: Reservation) -> Hold:
        await self.ping()
        return await super().reserve(request)

    async def renew(self, hold: Hold) -> None:
        await self.ping()
        await super().renew(hold)

    async def settle(self, hold: Hold, actual: Amounts) -> None:
        await self.ping()
        await super().settle(hold, actual)


class Platform:
    """One of two gateways, its store and its database."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = SwitchedStore(self.clock, LEASE_S, self.clock.now)
        self.local = MemoryQuotas(self.clock, LEASE_S, self.clock.now)
        self.is_database_away = False
        self.quotas = GuardedQuotas(self.store, self.local, self.count, probe_every_s=0.001)

    async def count(self) -> int:
        if self.is_database_away:
            raise DatabaseUnusable("nobody answers")
        return 2

    async def bring_back(self) -> None:
        self.store.is_away = False
        await self.quotas.restored()


@pytest.fixture
async def platform() -> AsyncIterator[Platform]:
    platform = Platform()
    yield platform
    await platform.quotas.close()


async def admitted(platform: Platform, one: ScopedLimit, **asked: int) -> int:
    """How many of ten requests at once get through, with the store away."""
    platform.store.is_away = True
    number = 0
    for i in range(10):
        try:
            await platform.quotas.reserve(ask(f"r{i}", limits=(one,), **asked))
        except (QuotaExceeded, QuotaBackendUnavailable):
            continue
        number += 1
    return number


@pytest.mark.parametrize(
    ("dimension", "on_store_loss", "mode", "num_admitted"),
    [
        ("requests_per_minute", "local", "enforce", 4),
        ("requests_per_minute", "open", "enforce", 10),
        ("requests_per_minute", "closed", "enforce", 0),
        ("requests_per_minute", "local", "shadow", 10),
        ("requests_per_minute", "closed", "shadow", 10),
        ("tokens_per_minute", "local", "enforce", 4),
        ("tokens_per_minute", "closed", "enforce", 0),
        ("concurrency", "local", "enforce", 4),
        ("concurrency", "open", "enforce", 10),
        ("concurrency", "closed", "enforce", 0),
        ("enqueued_tokens", "local", "enforce", 4),
        ("cost_micros_per_month", "local", "enforce", 10),
        ("cost_micros_per_month", "open", "enforce", 10),
        ("cost_micros_per_month", "closed", "enforce", 0),
        ("cost_micros_per_month", "closed", "shadow", 10),
        ("tokens_per_month", "local", "enforce", 10),
    ],
)
async def test_each_limit_does_what_it_says_while_the_store_is_away(
    platform: Platform,
    dimension: Dimension,
    on_store_loss: OnStoreLoss,
    mode: Mode,
    num_admitted: int,
) -> None:
    one = replace(limit(dimension, 8, mode=mode), on_store_loss=on_store_loss)
    assert await admitted(platform, one) == num_admitted
    assert platform.quotas.is_degraded


async def test_a_refusal_tells_the_limit_itself_not_the_gateways_part(platform: Platform) -> None:
    assert await admitted(platform, REQUESTS) == 4
    with pytest.raises(QuotaExceeded) as refused:
        await platform.quotas.reserve(ask("r", limits=(REQUESTS,)))
    assert (refused.value.limit, refused.value.retry_after_s) == (REQUESTS, 15.0)


async def test_a_hold_says_that_it_is_degraded_and_which_budgets_nobody_counted(
    platform: Platform,
) -> None:
    platform.store.is_away = True
    open_one = replace(limit("concurrency", 1), on_store_loss="open")
    limits = (REQUESTS, COST, open_one, replace(REQUESTS, scope="key", mode="shadow"))
    hold = await platform.quotas.reserve(ask("r1", limits=limits, cost=7))
    assert hold.reservation.limits == limits
    assert hold.is_degraded
    assert hold.unchecked == (COST,)
    assert [standing.limit for standing in hold.standings] == [limits[0], limits[3]]
    assert remaining(hold) == [3, 3]
    assert await platform.quotas.standings("a", limits) == hold.standings


async def test_what_is_larger_than_the_gateways_part_is_an_outage_and_no_mistake(
    platform: Platform,
) -> None:
    platform.store.is_away = True
    tokens = (limit("tokens_per_minute", 100),)
    await platform.quotas.reserve(ask("r1", 50, limits=tokens))
    with pytest.raises(QuotaBackendUnavailable, match="this size"):
        await platform.quotas.reserve(ask("r2", 51, limits=tokens))
    with pytest.raises(RequestExceedsLimit):
        await platform.quotas.reserve(ask("r3", 101, limits=tokens))


async def test_with_the_database_away_too_nothing_is_admitted(platform: Platform) -> None:
    platform.is_database_away = True
    assert await admitted(platform, REQUESTS) == 0
    platform.is_database_away = False
    platform.clock.pass_s(60)
    assert await admitted(platform, REQUESTS) == 4


async def test_a_hold_from_before_is_settled_in_the_store_when_it_is_back(
    platform: Platform,
) -> None:
    await platform.quotas.seed("a", [Reckoning(COST, 0, {})])
    hold = await platform.quotas.reserve(ask("r1", limits=(REQUESTS, COST), cost=500))
    platform.store.is_away = True
    await platform.quotas.renew(hold)
    await platform.quotas.settle(hold, used(1, cost=200))
    assert (await platform.store.in_use("a")).requests == 1
    await platform.bring_back()
    assert await platform.store.in_use("a") == NOTHING_IN_USE
    (standing,) = await platform.quotas.standings("a", (COST,))
    assert standing.used == 200


async def test_a_degraded_hold_is_renewed_and_settled_where_it_is_counted(
    platform: Platform,
) -> None:
    platform.store.is_away = True
    hold = await platform.quotas.reserve(ask("r1", 3, limits=(limit("concurrency", 2),)))
    platform.clock.pass_s(LEASE_S - 1)
    await platform.quotas.renew(hold)
    platform.clock.pass_s(LEASE_S - 1)
    assert (await platform.quotas.in_use("a")).requests == 1
    await platform.bring_back()
    await platform.quotas.settle(hold, used(1))
    assert await platform.local.in_use("a") == NOTHING_IN_USE
    await platform.quotas.check()


async def test_a_request_of_the_outage_is_settled_in_a_reckoning_that_has_it(
    platform: Platform,
) -> None:
    platform.store.is_away = True
    hold = await platform.quotas.reserve(ask("r1", limits=(COST,), cost=500))
    await platform.bring_back()
    await platform.quotas.seed("a", [Reckoning(COST, 100, {"r1": 500})])
    await platform.quotas.settle(hold, used(1, cost=20))
    (standing,) = await platform.quotas.standings("a", (COST,))
    assert standing.used == 120


async def test_a_store_that_comes_back_is_used_again(platform: Platform) -> None:
    platform.store.is_away = True
    assert (await platform.quotas.reserve(ask("r1"))).is_degraded
    await platform.bring_back()
    assert not platform.quotas.is_degraded
    hold = await platform.quotas.reserve(ask("r2"))
    assert not hold.is_degraded
    assert await platform.store.in_use("a") == InUse(1, 1, 1, 0)


async def test_the_store_is_looked_for_again_whatever_goes_wrong_meanwhile(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform.store.is_away = True
    hold = await platform.quotas.reserve(ask("r1"))
    tries = 0

    async def failing() -> int:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise PoolTimeout("no connection is free")
        return 2

    monkeypatch.setattr(platform.quotas, "_count_gateways", failing)
    real, failures = platform.store.settle, [RuntimeError("once")]

    async def settle(hold: Hold, actual: Amounts) -> None:
        if failures:
            raise failures.pop()
        await real(hold, actual)

    monkeypatch.setattr(platform.store, "settle", settle)
    await platform.quotas.settle(hold, used(1))
    while tries < 3:
        await asyncio.sleep(0)
        assert platform.quotas.is_degraded
    await platform.bring_back()
    assert not failures
    assert await platform.store.in_use("a") == NOTHING_IN_USE


async def test_whoever_asks_how_limits_stand_finds_out_that_the_store_is_away(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise QuotaBackendUnavailable("nobody answers")

    platform.store.is_away = True
    monkeypatch.setattr(platform.store, "standings", away)
    (standing,) = await platform.quotas.standings("a", (REQUESTS,))
    assert (standing.limit, standing.remaining) == (REQUESTS, 4)
    assert platform.quotas.is_degraded
    monkeypatch.setattr(platform.store, "seed", away)
    await platform.quotas.seed("a", [Reckoning(COST, 0, {})])


async def test_a_real_server_that_is_killed_and_started_again_is_guarded() -> None:
    async def count() -> int:
        return 1

    with running_valkey() as server:
        shared = RedisQuotas.open(server.url)
        quotas = GuardedQuotas(shared, MemoryQuotas(Clock(), LEASE_S), count, probe_every_s=0.01)
        before = await quotas.reserve(ask("r1"))
        server.kill()
        during = [quotas.reserve(ask(f"d{i}")) for i in range(3)]
        holds = await asyncio.gather(*during)
        assert all(hold.is_degraded for hold in holds)
        await quotas.settle(before, used(1))
        server.start()
        await quotas.restored()
        assert not (await quotas.reserve(ask("r2"))).is_degraded
        assert (await shared.in_use("a")).requests == 1
        await quotas.close()
        await shared.close()
