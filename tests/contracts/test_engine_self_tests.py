"""What every engine client promises of the tests of adapters."""

import asyncio

import pytest
from msgspec import structs
from tests.contracts.engine_pairs import Pair
from tests.platform.scripted_engine import PASSED

from loraplex.engine.client import EngineClient
from loraplex.engine.errors import EngineNotReached, EngineUnavailable


async def test_the_test_of_an_adapter_is_what_the_engine_found(pair: Pair) -> None:
    pair.engine.self_test = structs.replace(PASSED, passed=False, detail="differs")
    report = await pair.client.verify("acme", "d1", 2.5, may_use_peft=False)
    assert report == pair.engine.self_test
    (asked,) = pair.engine.verified
    assert (asked.tenant, asked.adapter, asked.weight) == ("acme", "d1", 2.5)
    assert not asked.may_use_peft


async def test_tests_that_run_at_a_time_have_each_their_own_answer(pair: Pair) -> None:
    reports = await asyncio.gather(*(pair.client.verify("acme", f"d{i}") for i in range(4)))
    assert reports == [PASSED] * 4
    assert {asked.adapter for asked in pair.engine.verified} == {"d0", "d1", "d2", "d3"}


async def test_a_test_that_could_not_be_made_says_why(pair: Pair) -> None:
    pair.engine.self_test = "the worker is too busy"
    with pytest.raises(EngineUnavailable, match="too busy"):
        await pair.client.verify("acme", "d1")


async def test_a_worker_that_dies_fails_its_tests(pair: Pair) -> None:
    pair.engine.self_test = None
    test = asyncio.create_task(pair.client.verify("acme", "d1"))
    async with asyncio.timeout(60):
        while not pair.engine.verified:
            await pair.engine.settled()
    pair.engine.die()
    with pytest.raises(EngineUnavailable):
        await test
    with pytest.raises(EngineNotReached):
        await pair.client.verify("acme", "d1")


async def test_before_a_worker_came_no_adapter_is_tested(unconnected: EngineClient) -> None:
    with pytest.raises(EngineNotReached):
        await unconnected.verify("acme", "d1")
