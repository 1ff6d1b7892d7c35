"""Quotas in Redis: what only a store that processes share can do wrong."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.services.valkey import Valkey, running_valkey

from loraplex.tenants.errors import QuotaBackendUnavailable, QuotaExceeded
from loraplex.tenants.limits import Limits, TenantLimits
from loraplex.tenants.quotas import InUse, Rate, Reservation
from loraplex.tenants.quotas_redis import RedisQuotas

LIMITS = Limits(requests_per_minute=600, tokens_per_minute=60_000, concurrency=8)
CLIENT = Path(__file__).with_name("quota_client.py")


def ask(request_id: str, tokens: int = 1, tenant_id: str = "a") -> Reservation:
    return Reservation(request_id, tenant_id, TenantLimits(), tokens)


@pytest.fixture
def empty(valkey: Valkey) -> Valkey:
    valkey.client.flushall()
    valkey.client.script_flush()
    return valkey


@pytest.fixture
async def quotas(empty: Valkey) -> AsyncIterator[RedisQuotas]:
    quotas = RedisQuotas.open(empty.url, LIMITS)
    yield quotas
    await quotas.close()


async def test_all_keys_of_a_tenant_have_its_hash_tag(quotas: RedisQuotas, empty: Valkey) -> None:
    hold = await quotas.reserve(ask("r1"))
    await quotas.renew(hold)
    await quotas.settle(hold, 1)
    assert list(empty.client.scan_iter()) == [b"{t:a}:quotas"]


async def test_what_no_longer_matters_goes_by_itself(quotas: RedisQuotas, empty: Valkey) -> None:
    hold = await quotas.reserve(ask("r1"))
    lease_and_minute_ms = empty.client.pttl("{t:a}:quotas")
    await quotas.settle(hold, 1)
    minute_ms = empty.client.pttl("{t:a}:quotas")
    assert 60_000 < minute_ms < 61_000 < lease_and_minute_ms <= 120_000


async def test_time_is_the_servers(quotas: RedisQuotas, empty: Valkey) -> None:
    seconds, _ = empty.client.time()
    rate = (await quotas.reserve(ask("r1"))).requests_rate
    assert rate == Rate(600, 599, 0.1)
    in_a_year = RedisQuotas.open(
        empty.url, LIMITS, clock_ms=lambda: (seconds + 365 * 86_400) * 1000
    )
    assert await in_a_year.in_use("a") == InUse(0, 0, slots=0)
    assert await quotas.in_use("a") == InUse(1, 1, slots=1)
    await in_a_year.close()


async def test_a_clock_that_was_set_back_does_not_stop_the_draining(empty: Valkey) -> None:
    times_ms = iter([10_000_000, 5_000_000, 5_060_000])
    one_a_minute = Limits(1, 60_000, 8)
    quotas = RedisQuotas.open(empty.url, one_a_minute, clock_ms=lambda: next(times_ms))
    await quotas.reserve(ask("r1"))
    with pytest.raises(QuotaExceeded):
        await quotas.reserve(ask("r2"))
    await quotas.reserve(ask("r2"))
    await quotas.close()


async def test_the_highest_limits_are_counted_exactly(empty: Valkey) -> None:
    most = 2_000_000_000
    quotas = RedisQuotas.open(empty.url, Limits(most, most, 8), clock_ms=lambda: 1_800_000_000_001)
    await quotas.reserve(ask("r1", tokens=most - 1))
    assert (await quotas.reserve(ask("r2"))).tokens_rate.remaining == 0
    with pytest.raises(QuotaExceeded):
        await quotas.reserve(ask("r3"))
    await quotas.check()
    await quotas.close()


async def test_connections_that_ask_at_once_never_get_more_than_the_limit(empty: Valkey) -> None:
    gateways = [RedisQuotas.open(empty.url, LIMITS) for _ in range(4)]
    asked = [
        gateway.reserve(ask(f"{i}-{n}")) for i, gateway in enumerate(gateways) for n in range(10)
    ]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, QuotaExceeded)]
    assert len(answers) - len(refused) == LIMITS.concurrency
    assert {error.dimension for error in refused} == {"concurrency"}
    assert await gateways[0].in_use("a") == InUse(8, 8, slots=8)
    for gateway in gateways:
        await gateway.close()


async def test_processes_that_ask_at_once_get_the_limit_together(
    empty: Valkey, quotas: RedisQuotas
) -> None:
    clients = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, str(CLIENT), empty.url, "240", str(number)),
            stdout=asyncio.subprocess.PIPE,
        )
        for number in range(3)
    ]
    outputs = [(await client.communicate())[0] for client in clients]
    assert sum(map(int, outputs)) == 240
    await quotas.check()


async def test_a_server_that_was_killed_has_every_hold_again(empty: Valkey) -> None:
    with running_valkey() as server:
        quotas = RedisQuotas.open(server.url, LIMITS)
        hold = await quotas.reserve(ask("r1", tokens=7))
        server.kill()
        with pytest.raises(QuotaBackendUnavailable):
            await quotas.reserve(ask("r2"))
        server.start()
        assert await quotas.in_use("a") == InUse(1, 7, slots=1)
        await quotas.settle(hold, 7)
        assert await quotas.in_use("a") == InUse(0, 0, slots=0)
        await quotas.close()


@pytest.mark.parametrize(
    "url",
    ["redis://user:hunter2@127.0.0.1:1/0", "redis://127.0.0.1:1/0?password=hunter2"],
)
async def test_a_server_that_is_away_is_told_in_one_line_without_the_password(url: str) -> None:
    quotas = RedisQuotas.open(url, LIMITS)
    for call in (quotas.ping(), quotas.reserve(ask("r1")), quotas.in_use("a"), quotas.check()):
        with pytest.raises(QuotaBackendUnavailable, match=r"redis://127\.0\.0\.1:1/0 ") as refused:
            await call
        assert "hunter2" not in str(refused.value)
        assert "\n" not in str(refused.value)
    await quotas.close()


@pytest.mark.parametrize("url", ["nonsense", "http://x", "redis://:hunter2@h:port", ""])
def test_a_url_that_cannot_work_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(QuotaBackendUnavailable, match="looks like") as refused:
        RedisQuotas.open(url, LIMITS)
    assert "hunter2" not in str(refused.value)


@pytest.fixture
def full(empty: Valkey) -> Iterator[Valkey]:
    empty.client.config_set("maxmemory", 1)
    yield empty
    empty.client.config_set("maxmemory", 0)


@pytest.mark.usefixtures("full")
async def test_a_server_that_is_full_is_told_as_unavailable(quotas: RedisQuotas) -> None:
    with pytest.raises(QuotaBackendUnavailable, match="maxmemory"):
        await quotas.reserve(ask("r1"))


async def test_few_commands_are_enough_and_script_is_none_of_them(empty: Valkey) -> None:
    commands = ("evalsha", "eval", "get", "set", "time", "hello", "client")
    empty.client.acl_setuser(
        "gateway",
        enabled=True,
        passwords=["+hunter2"],
        keys=["{t:*}:*"],
        commands=[f"+{command}" for command in commands],
    )
    url = empty.url.replace("unix://", "unix://gateway:hunter2@")
    quotas = RedisQuotas.open(url, LIMITS)
    await quotas.ping()
    await quotas.settle(await quotas.reserve(ask("r1")), 1)
    assert await quotas.in_use("a") == InUse(0, 0, slots=0)
    await quotas.close()
