"""Processes that ask at once: never more than the limits, nothing lost, whoever dies."""

import asyncio
import os
import random
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.services.valkey import Valkey
from tests.tenants.quota_client import limits_for

from loraplex.tenants.quotas import InUse
from loraplex.tenants.quotas_redis import RedisQuotas
from loraplex.tenants.reservations import Reckoning

NUM_PROCESSES = 8
NUM_CALLS = int(os.environ.get("RACE_CALLS", "2400"))
"""In all; `make race-test` makes 20,000."""
CLIENT = "tests.tenants.quota_client"
ROOT = Path(__file__).parents[2]


class Race:
    """What all processes together were told."""

    def __init__(self, url: str, quotas: RedisQuotas, num_calls: int) -> None:
        self.url = url
        self.num_calls = num_calls
        self.limits = limits_for(num_calls)
        self.quotas = quotas
        self.used = 0
        self.refusals: Counter[str] = Counter()

    async def run(self, kill_after: dict[int, int]) -> None:
        """Run the processes to their end; some are killed after so many of their calls."""
        budgets = [each for each in self.limits if each.budget]
        await self.quotas.seed("race", [Reckoning(each, 0, {}) for each in budgets])
        async with asyncio.TaskGroup() as group:
            for number in range(NUM_PROCESSES):
                group.create_task(self._follow(number, kill_after.get(number)))

    async def _follow(self, number: int, kill_after: int | None) -> None:
        calls = self.num_calls // NUM_PROCESSES
        words = ("-m", CLIENT, self.url, calls, self.num_calls, f"c{number}")
        client = await asyncio.create_subprocess_exec(
            sys.executable, *map(str, words), stdout=PIPE, cwd=ROOT
        )
        assert client.stdout is not None
        num_told = 0
        async for line in client.stdout:
            self._note(line.decode())
            num_told += 1
            if num_told == kill_after:
                client.kill()
        await self._ended(client, was_killed=kill_after is not None)
        assert num_told == calls or kill_after is not None

    async def _ended(self, client: Process, *, was_killed: bool) -> None:
        status = await client.wait()
        assert (status == 0) is not was_killed

    def _note(self, line: str) -> None:
        match line.split():
            case ["used", tokens]:
                self.used += int(tokens)
            case ["refused", dimension]:
                self.refusals[dimension] += 1

    async def used_of_budgets(self) -> list[int]:
        standings = await self.quotas.standings("race", self.limits[:2])
        return [each.used for each in standings]


@pytest.fixture
async def quotas(valkey: Valkey) -> AsyncIterator[RedisQuotas]:
    valkey.client.flushall()
    quotas = RedisQuotas.open(valkey.url)
    yield quotas
    await quotas.close()


async def test_processes_that_ask_at_once_never_get_more_than_the_limits(
    valkey: Valkey, quotas: RedisQuotas
) -> None:
    race = Race(valkey.url, quotas, NUM_CALLS)
    await race.run(kill_after={})
    tokens, cost = await race.used_of_budgets()
    assert tokens == race.used
    assert tokens <= race.limits[0].value
    assert cost <= race.limits[1].value
    # It was a race: most of the budget was used, and the rest refused.
    assert tokens > race.limits[0].value * 0.9
    assert race.refusals["tokens_per_month"] > 0
    assert await quotas.in_use("race") == InUse(0, 0, 0, 0)
    await quotas.check()


async def test_of_processes_that_are_killed_exactly_the_open_holds_are_left(
    valkey: Valkey, quotas: RedisQuotas
) -> None:
    race, chance = Race(valkey.url, quotas, NUM_CALLS // 2), random.Random(1)
    calls = race.num_calls // NUM_PROCESSES
    await race.run(kill_after={n: chance.randint(calls // 10, calls // 2) for n in range(4)})
    left = await quotas.in_use("race")
    assert left.requests > 0
    reserved = [0, 0]
    spent = [0, 0]
    for number, limit in enumerate(race.limits[:2]):
        (key,) = valkey.client.scan_iter(match=f"{{t:race}}:{limit.scope}:*:{limit.dimension}:*")
        told = valkey.client.hgetall(key)
        reserved[number], spent[number] = int(told[b"reserved"]), int(told[b"spent"])
        assert sum(n.startswith(b"r:") for n in told) == left.requests
    assert reserved == [left.tokens, left.cost_micros]
    assert spent[0] >= race.used
    assert spent[0] + reserved[0] <= race.limits[0].value
    await quotas.check()
