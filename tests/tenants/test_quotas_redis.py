"""Quotas in Redis: what only a store that processes share can do wrong."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.contracts.quota_stores import NOVEMBER, limit
from tests.services.valkey import Valkey, running_valkey
from tests.services.valkey_cluster import ValkeyCluster

from loraplex.tenants.errors import (
    BudgetsUnknown,
    QuotaBackendUnavailable,
    QuotaExceeded,
    QuotaStateUnreadable,
)
from loraplex.tenants.quotas import InUse
from loraplex.tenants.quotas_guarded import GuardedQuotas
from loraplex.tenants.quotas_memory import MemoryQuotas
from loraplex.tenants.quotas_redis import RedisQuotas
from loraplex.tenants.reservations import Amounts, Hold, Reckoning, Reservation
from loraplex.tenants.scoped_limits import ScopedLimit

LIMITS = (
    limit("requests_per_minute", 600),
    limit("tokens_per_minute", 60_000, "key"),
    limit("concurrency", 8, "project"),
)
BUDGET = limit("cost_micros_per_month", 10**15, "adapter")
NONE_IN_USE = InUse(0, 0, 0, 0)


def ask(
    request_id: str, tokens: int = 1, limits: tuple[ScopedLimit, ...] = LIMITS, tenant_id: str = "a"
) -> Reservation:
    return Reservation(request_id, tenant_id, limits, Amounts(tokens, 0, 0))


async def seed(quotas: RedisQuotas, tenant_id: str = "a", spent: int = 0) -> None:
    await quotas.seed(tenant_id, [Reckoning(BUDGET, spent, {})])


@pytest.fixture
def empty(valkey: Valkey) -> Valkey:
    valkey.client.flushall()
    valkey.client.script_flush()
    return valkey


@pytest.fixture
async def quotas(empty: Valkey) -> AsyncIterator[RedisQuotas]:
    quotas = RedisQuotas.open(empty.url)
    yield quotas
    await quotas.close()


async def test_each_limit_has_a_key_of_its_own_under_the_tenants_hash_tag(
    quotas: RedisQuotas, empty: Valkey
) -> None:
    await seed(quotas)
    hold = await quotas.reserve(ask("r1", limits=(*LIMITS, BUDGET)))
    assert set(empty.client.scan_iter()) == {
        b"{t:a}:holds",
        b"{t:a}:tenant:tenant-1:requests_per_minute",
        b"{t:a}:key:key-1:tokens_per_minute",
        b"{t:a}:project:project-1:concurrency",
        b"{t:a}:adapter:adapter-1:cost_micros_per_month:2026-11-01T00:00:00",
        b"{t:a}:reserved",
    }
    await quotas.renew(hold)
    await quotas.settle(hold, Amounts(1, 0, 0))
    assert b"{t:a}:holds" not in set(empty.client.scan_iter())


async def test_what_no_longer_matters_goes_by_itself(quotas: RedisQuotas, empty: Valkey) -> None:
    key = "{t:a}:tenant:tenant-1:requests_per_minute"
    hold = await quotas.reserve(ask("r1"))
    lease_and_minute_ms = empty.client.pttl(key)
    await quotas.settle(hold, Amounts(1, 0, 0))
    minute_ms = empty.client.pttl(key)
    assert 60_000 < minute_ms < 61_000 < lease_and_minute_ms <= 120_000


async def test_a_budget_is_kept_for_some_days_after_its_month(
    quotas: RedisQuotas, empty: Valkey
) -> None:
    await seed(quotas)
    (key,) = empty.client.scan_iter(match="*month*")
    seconds, _ = empty.client.time()
    days = (seconds + empty.client.ttl(key) - NOVEMBER.end.timestamp()) / 86_400
    assert 4.9 < days < 5.1


async def test_time_is_the_servers(quotas: RedisQuotas, empty: Valkey) -> None:
    seconds, _ = empty.client.time()
    assert (await quotas.reserve(ask("r1"))).standings[0].reset_s == 0.1
    in_a_year = RedisQuotas.open(empty.url, clock_ms=lambda: (seconds + 365 * 86_400) * 1000)
    assert await in_a_year.in_use("a") == NONE_IN_USE
    assert (await quotas.in_use("a")).requests == 1
    await in_a_year.close()


async def test_a_clock_that_was_set_back_does_not_stop_the_draining(empty: Valkey) -> None:
    times_ms = iter([10_000_000, 5_000_000, 5_060_000])
    one_a_minute = (limit("requests_per_minute", 1),)
    quotas = RedisQuotas.open(empty.url, clock_ms=lambda: next(times_ms))
    await quotas.reserve(ask("r1", limits=one_a_minute))
    with pytest.raises(QuotaExceeded):
        await quotas.reserve(ask("r2", limits=one_a_minute))
    await quotas.reserve(ask("r2", limits=one_a_minute))
    await quotas.close()


async def test_the_highest_limits_are_counted_exactly(empty: Valkey) -> None:
    most, cost = 2_000_000_000, 9 * 10**15
    limits = (
        limit("tokens_per_minute", most),
        limit("enqueued_tokens", most, "key"),
        limit("cost_micros_per_month", cost),
    )
    quotas = RedisQuotas.open(empty.url, clock_ms=lambda: 1_800_000_000_001)
    await quotas.seed("a", [Reckoning(limits[2], cost - 3, {"r0": 1})])
    await quotas.reserve(Reservation("r1", "a", limits, Amounts(most - 1, 0, 1)))
    hold = await quotas.reserve(Reservation("r2", "a", limits, Amounts(1, 0, 1)))
    assert [standing.remaining for standing in hold.standings] == [0, 0, 0]
    await quotas.settle(hold, Amounts(1, 0, 0))
    (standing,) = await quotas.standings("a", limits[2:])
    assert standing.remaining == 1
    await quotas.check()
    await quotas.close()


async def test_connections_that_ask_at_once_never_get_more_than_the_limit(empty: Valkey) -> None:
    gateways = [RedisQuotas.open(empty.url) for _ in range(4)]
    asked = [
        gateway.reserve(ask(f"{i}-{n}")) for i, gateway in enumerate(gateways) for n in range(10)
    ]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, QuotaExceeded)]
    assert len(answers) - len(refused) == 8
    assert {error.limit for error in refused} == {LIMITS[2]}
    assert await gateways[0].in_use("a") == InUse(8, 8, 8, 0)
    for gateway in gateways:
        await gateway.close()


async def test_a_server_that_was_killed_has_its_holds_again_but_knows_no_budget() -> None:
    with running_valkey() as server:
        quotas = RedisQuotas.open(server.url)
        await seed(quotas)
        limits = (*LIMITS, BUDGET)
        hold = await quotas.reserve(ask("r1", 7, limits))
        server.kill()
        with pytest.raises(QuotaBackendUnavailable):
            await quotas.reserve(ask("r2"))
        server.start()
        # Its file may lack what was written last.
        with pytest.raises(BudgetsUnknown):
            await quotas.reserve(ask("r2", limits=limits))
        await seed(quotas)
        with pytest.raises(BudgetsUnknown):
            await quotas.reserve(ask("r2", limits=limits))
        assert await quotas.in_use("a") == InUse(1, 7, 1, 0)
        await quotas.settle(hold, Amounts(7, 0, 0))
        assert await quotas.in_use("a") == NONE_IN_USE
        await quotas.close()


async def test_a_server_that_takes_over_has_the_rates_but_knows_no_budget(
    quotas: RedisQuotas, empty: Valkey
) -> None:
    await seed(quotas)
    limits = (*LIMITS, BUDGET)
    await quotas.reserve(ask("r1", 7, limits))
    with running_valkey() as replica:
        for key in empty.client.scan_iter():
            replica.client.restore(key, 60_000, empty.client.dump(key))
        promoted = RedisQuotas.open(replica.url)
        assert await promoted.in_use("a") == InUse(1, 7, 1, 0)
        assert await promoted.standings("a", (BUDGET,)) == ()
        with pytest.raises(BudgetsUnknown):
            await promoted.reserve(ask("r2", limits=limits))
        await promoted.close()


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:hunter2@127.0.0.1:1/0",
        "redis://127.0.0.1:1/0?password=hunter2",
        "redis+cluster://user:hunter2@127.0.0.1:1/0",
    ],
)
async def test_a_server_that_is_away_is_told_in_one_line_without_the_password(url: str) -> None:
    quotas = RedisQuotas.open(url)
    for call in (quotas.ping(), quotas.reserve(ask("r1")), quotas.in_use("a"), quotas.check()):
        with pytest.raises(
            QuotaBackendUnavailable, match=r"redis(\+cluster)?://127\.0\.0\.1:1/0 "
        ) as refused:
            await call
        assert "hunter2" not in str(refused.value)
        assert "\n" not in str(refused.value)
    await quotas.close()


@pytest.mark.parametrize(
    "url", ["nonsense", "http://x", "redis://:hunter2@h:port", "", "x+cluster:/"]
)
def test_a_url_that_cannot_work_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(QuotaBackendUnavailable, match="looks like") as refused:
        RedisQuotas.open(url)
    assert "hunter2" not in str(refused.value)


@pytest.fixture
def full(empty: Valkey) -> Iterator[Valkey]:
    empty.client.config_set("maxmemory", 1)
    yield empty
    empty.client.config_set("maxmemory", 0)


@pytest.mark.usefixtures("full")
async def test_a_server_that_is_full_is_told_as_unavailable(quotas: RedisQuotas) -> None:
    for call in (quotas.ping(), quotas.reserve(ask("r1"))):
        with pytest.raises(QuotaBackendUnavailable, match="maxmemory"):
            await call


@pytest.mark.parametrize(
    ("suffix", "rubbish"),
    [
        ("holds", b"no map"),
        ("tenant:tenant-1:requests_per_minute", b"\x81\xa3ids\x01"),
        ("adapter:adapter-1:cost_micros_per_month:2026-11-01T00:00:00", b"no hash"),
    ],
)
async def test_what_cannot_be_read_of_one_tenant_is_thrown_away_and_no_store_is_lost(
    quotas: RedisQuotas, empty: Valkey, suffix: str, rubbish: bytes
) -> None:
    async def count() -> int:
        return 1

    guarded = GuardedQuotas(quotas, MemoryQuotas(lambda: 0), count)
    await seed(quotas)
    await seed(quotas, "b")
    of_b = await guarded.reserve(ask("r1", limits=(*LIMITS, BUDGET), tenant_id="b"))
    empty.client.set(f"{{t:a}}:{suffix}", rubbish)
    with pytest.raises(BudgetsUnknown):
        await guarded.reserve(ask("r2", limits=(*LIMITS, BUDGET)))
    await seed(quotas)
    assert not (await guarded.reserve(ask("r2", limits=(*LIMITS, BUDGET)))).is_degraded
    assert not guarded.is_degraded
    assert (await guarded.in_use("b")).requests == 1
    await guarded.release(of_b)
    await guarded.close()


async def test_a_script_that_always_fails_on_one_tenant_fails_its_calls_alone(
    quotas: RedisQuotas,
) -> None:
    class Failing(RedisQuotas):
        async def reserve(self, request: Reservation) -> Hold:
            if request.tenant_id == "b":
                raise QuotaStateUnreadable("broken")
            return await super().reserve(request)

    async def count() -> int:
        return 1

    guarded = GuardedQuotas(Failing(quotas._scripts), MemoryQuotas(lambda: 0), count)
    with pytest.raises(QuotaStateUnreadable):
        await guarded.reserve(ask("r1", tenant_id="b"))
    assert not (await guarded.reserve(ask("r1"))).is_degraded
    await guarded.close()


async def test_a_server_that_may_evict_is_warned_of(
    quotas: RedisQuotas, empty: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    await quotas.warn_of_eviction()
    assert not caplog.records
    empty.client.config_set("maxmemory-policy", "allkeys-lru")
    await quotas.warn_of_eviction()
    empty.client.config_set("maxmemory-policy", "noeviction")
    assert "maxmemory-policy is allkeys-lru" in caplog.text


async def test_few_commands_are_enough_and_script_is_none_of_them(empty: Valkey) -> None:
    commands = (
        *("evalsha", "eval", "get", "set", "del", "time", "info", "hello", "client"),
        *("hget", "hgetall", "hmget", "hset", "hdel", "hexists", "hincrby", "pexpire"),
        *("zadd", "zrem", "zrangebyscore"),
    )
    empty.client.acl_setuser(
        "gateway",
        enabled=True,
        passwords=["+hunter2"],
        keys=["{t:*}:*"],
        commands=[f"+{command}" for command in commands],
    )
    url = empty.url.replace("unix://", "unix://gateway:hunter2@")
    quotas = RedisQuotas.open(url, lease_s=0.0)
    await quotas.ping()
    await quotas.warn_of_eviction()
    await seed(quotas)
    hold = await quotas.reserve(ask("r1", limits=(*LIMITS, BUDGET)))
    assert len(await quotas.lapsed("a", 9)) == 1
    await quotas.settle(hold, Amounts(1, 0, 0))
    assert await quotas.in_use("a") == NONE_IN_USE
    await quotas.close()


async def test_a_server_without_evalsha_gets_whole_scripts_and_says_so_once(
    empty: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    quotas = RedisQuotas.open(empty.url_without("evalsha", "script"))
    with caplog.at_level(logging.WARNING):
        for i in range(3):
            await quotas.reserve(ask(f"r{i}"))
    assert caplog.text.count("does not allow EVALSHA") == 1
    await quotas.close()


async def test_a_cluster_holds_each_tenant_on_one_server_and_takes_many_calls_at_once(
    valkey_cluster: ValkeyCluster,
) -> None:
    valkey_cluster.client.flushall()
    quotas = RedisQuotas.open(valkey_cluster.url)
    tenants = [f"t{i}" for i in range(12)]
    for tenant in tenants:
        await seed(quotas, tenant)
    limits = (LIMITS[0], BUDGET, limit("tokens_per_month", 10, "key"))
    await quotas.seed("t0", [Reckoning(limits[2], 0, {})])
    await asyncio.gather(
        *(quotas.reserve(ask(f"r{i}", 1, limits[:2], tenants[i % 12])) for i in range(240))
    )
    assert [(await quotas.in_use(tenant)).requests for tenant in tenants] == [20] * 12
    hold = await quotas.reserve(ask("r", 7, limits, "t0"))
    assert [standing.used for standing in hold.standings][2] == 7
    client = valkey_cluster.client
    num_keys = [len(client.keys(target_nodes=node)) for node in client.get_primaries()]
    assert all(num_keys)
    await quotas.check()
    await quotas.close()


async def test_a_server_that_hangs_is_away_for_a_call_whatever_its_retries_wait_for(
    empty: Valkey,
) -> None:
    quotas = RedisQuotas.open(empty.url)
    await quotas.ping()  # a connection is open, which hangs, and so do those that replace it
    os.kill(empty.pid, signal.SIGSTOP)
    try:
        with pytest.raises(QuotaBackendUnavailable, match="no answer within"):
            await quotas.in_use("t")
    finally:
        os.kill(empty.pid, signal.SIGCONT)
    assert (await quotas.in_use("t")).requests == 0
    await quotas.close()
