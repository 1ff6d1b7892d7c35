"""The walk without HTTP: whatever happens, each request is settled exactly once."""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from tests.platform.scripted_engine import ScriptedEngine, says
from tests.platform.walking import Walk, walk_over

from loraplex.engine.errors import (
    EngineError,
    EngineNotReached,
    EngineOverloaded,
    EngineUnavailable,
    RequestFailed,
    RequestRefused,
)
from loraplex.engine.protocol import Finished, Tokens
from loraplex.platform import completions
from loraplex.platform.completions import Admitted, Call, CompletionRequest, complete
from loraplex.platform.errors import EngineStopped, KeyMissing
from loraplex.platform.services import Resources
from loraplex.tenants.errors import (
    KeyMalformed,
    QuotaBackendUnavailable,
    QuotaExceeded,
    RequestExceedsLimit,
)
from loraplex.tenants.quotas import Quotas
from loraplex.tenants.quotas_memory import MemoryQuotas
from loraplex.tenants.reservations import Amounts, Hold, Reservation


@pytest.fixture
def gateway_database_url(database_url: str) -> str:
    return database_url


@pytest.fixture
async def walk(resources: Resources) -> AsyncIterator[Walk]:
    walk = await walk_over(resources)
    yield walk
    walk.services.prompts.close()


async def test_a_walk_is_admitted_tokens_finished(walk: Walk) -> None:
    admitted, tokens, finished = await walk.run()
    assert isinstance(admitted, Admitted)
    assert isinstance(tokens, Tokens)
    assert isinstance(finished, Finished)


async def test_finished_comes_after_the_ledger_has_it_and_the_hold_is_gone(walk: Walk) -> None:
    async for event in complete(walk.call(), walk.services):
        if isinstance(event, Finished):
            assert len(await walk.usage()) == 1
            assert (await walk.resources.quotas.in_use(walk.tenant_id)).requests == 0


@pytest.mark.parametrize("error", [RequestRefused("no", "prompt"), EngineOverloaded("no", 1.0)])
async def test_what_the_engine_refuses_costs_nothing(walk: Walk, error: EngineError) -> None:
    walk.engine.answer = lambda engine, i: engine.reject(i, error)
    with pytest.raises(type(error)):
        await walk.run()
    assert await walk.usage() == []
    await walk.assert_settled()


async def test_without_a_worker_nothing_is_reserved(walk: Walk) -> None:
    walk.engine.die()
    with pytest.raises(EngineUnavailable):
        await walk.run()
    assert await walk.usage() == []
    await walk.assert_settled()


async def test_a_request_that_found_no_worker_when_it_was_to_be_sent_costs_nothing(
    resources: Resources,
) -> None:
    walk = await walk_over(resources, requests_per_minute=1)
    async with aclosing(complete(walk.call(), walk.services)) as events:
        assert isinstance(await anext(events), Admitted)
        walk.engine.is_connected = False
        with pytest.raises(EngineNotReached):
            await anext(events)
    assert await walk.usage() == []
    await walk.assert_settled()
    walk.engine.is_connected = True
    await walk.run()  # its one request of this minute was given back
    walk.services.prompts.close()


@pytest.mark.parametrize("num_tokens", [0, 2])
async def test_when_the_worker_dies_what_was_delivered_is_recorded(
    walk: Walk, num_tokens: int
) -> None:
    def answer(engine: ScriptedEngine, request_id: str) -> None:
        engine.emit(request_id, *["x"] * num_tokens)
        engine.die()

    walk.engine.answer = answer
    with pytest.raises(EngineUnavailable):
        await walk.run()
    (row,) = await walk.usage()
    assert (row.finish_reason, row.completion_tokens) == ("error", num_tokens)
    assert (row.prompt_tokens > 0) == (num_tokens > 0)
    await walk.assert_settled()


async def test_a_request_that_fails_in_the_engine_is_recorded_as_an_error(walk: Walk) -> None:
    def answer(engine: ScriptedEngine, request_id: str) -> None:
        engine.emit(request_id, "x")
        engine.fail(request_id)

    walk.engine.answer = answer
    with pytest.raises(RequestFailed):
        await walk.run()
    (row,) = await walk.usage()
    assert (row.finish_reason, row.completion_tokens) == ("error", 1)
    await walk.assert_settled()


async def test_an_engine_that_stops_by_itself_is_an_error_not_an_answer(walk: Walk) -> None:
    walk.engine.answer = says("x", reason="abort")
    with pytest.raises(EngineStopped):
        await walk.run()
    assert [row.finish_reason for row in await walk.usage()] == ["error"]
    await walk.assert_settled()


async def test_a_slow_client_is_an_abort_not_an_error(walk: Walk) -> None:
    walk.engine.answer = None
    walk.engine.max_events = 2
    async with aclosing(complete(walk.call(), walk.services)) as events:
        await anext(events)
        first = asyncio.create_task(anext(events))
        request_id = (await walk.engine.submitted()).request_id
        walk.engine.emit(request_id, "x")
        await first
        walk.engine.emit(request_id, "x", "x", "x")
        with pytest.raises(RequestFailed):
            await anext(events)
    (row,) = await walk.usage()
    assert (row.finish_reason, row.completion_tokens) == ("abort", 4)
    await walk.assert_settled()


@pytest.mark.parametrize("num_events", [1, 2])
async def test_a_walk_that_is_closed_early_is_settled(walk: Walk, num_events: int) -> None:
    async with aclosing(complete(walk.call(), walk.services)) as events:
        for _ in range(num_events):
            await anext(events)
    assert [row.finish_reason for row in await walk.usage()] == (["stop"] if num_events > 1 else [])
    await walk.assert_settled()


async def test_limits_are_told_and_cost_nothing(resources: Resources) -> None:
    walk = await walk_over(resources, requests_per_minute=1, tokens_per_minute=200)
    with pytest.raises(RequestExceedsLimit):
        await walk.run(max_tokens=200)
    await walk.run()
    with pytest.raises(QuotaExceeded):
        await walk.run()
    assert len(await walk.usage()) == 1
    await walk.assert_settled()
    walk.services.prompts.close()


async def test_a_body_is_read_only_for_a_caller_who_is_known(walk: Walk) -> None:
    async def read() -> CompletionRequest:
        raise AssertionError("the body was read")

    with pytest.raises(KeyMissing):
        await anext(complete(Call("req_a", None, read), walk.services))
    with pytest.raises(KeyMalformed):
        await anext(complete(Call("req_b", walk.key[:-1], read), walk.services))


async def test_a_cancel_at_any_moment_settles_exactly_once(walk: Walk) -> None:
    """Cancel after each number of steps of the event loop, until the walk ends before it."""
    walk.engine.answer = says("a", "b")
    await walk.run()
    outcomes: set[tuple[str, ...]] = set()
    for num_steps in range(1000):
        before = {row.request_id for row in await walk.usage()}
        task = asyncio.create_task(walk.run())
        for _ in range(num_steps):
            await asyncio.sleep(0)
        task.cancel()
        ended = (await asyncio.gather(task, return_exceptions=True))[0]
        await walk.assert_settled()
        new = [row for row in await walk.usage() if row.request_id not in before]
        assert len(new) == len({row.request_id for row in new}) <= 1
        outcomes.add(tuple(row.finish_reason for row in new))
        if not isinstance(ended, asyncio.CancelledError):
            assert len(new) == 1
            break
    assert () in outcomes
    assert ("stop",) in outcomes


class HeldBackQuotas:
    """Quotas that have decided, but whose answer is on its way until the test lets it come."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self.decided = asyncio.Event()
        self.answer = asyncio.Event()
        self.renewed: list[Hold] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._quotas, name)

    async def reserve(self, request: Reservation) -> Hold:
        hold = await self._quotas.reserve(request)
        self.decided.set()
        await self.answer.wait()
        return hold

    async def renew(self, hold: Hold) -> None:
        self.renewed.append(hold)


@pytest.mark.parametrize("num_computed", [0, 2])
async def test_a_client_that_leaves_is_charged_the_prompt_as_far_as_it_was_computed(
    resources: Resources, num_computed: int
) -> None:
    walk = await walk_over(resources, requests_per_minute=1)
    walk.engine.answer = None
    task = asyncio.create_task(walk.run())
    request_id = (await walk.engine.submitted()).request_id
    walk.engine.runs[request_id].num_prompt_computed = num_computed
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await walk.assert_settled()
    rows = [(row.finish_reason, row.prompt_tokens) for row in await walk.usage()]
    if num_computed:
        assert rows == [("abort", num_computed)]
    else:
        assert rows == []
        walk.engine.answer = says("x")
        await walk.run()  # its one request of this minute was given back
    walk.services.prompts.close()


async def test_a_cancel_while_quotas_answer_gives_the_hold_back(resources: Resources) -> None:
    quotas = HeldBackQuotas(resources.quotas)
    walk = await walk_over(replace(resources, quotas=quotas))
    task = asyncio.create_task(walk.run())
    await quotas.decided.wait()
    task.cancel()
    assert (await resources.quotas.in_use(walk.tenant_id)).requests == 1
    quotas.answer.set()
    await asyncio.gather(task, return_exceptions=True)
    await walk.assert_settled()
    assert await walk.usage() == []
    walk.services.prompts.close()


async def test_holds_of_long_requests_are_renewed(resources: Resources) -> None:
    quotas = HeldBackQuotas(resources.quotas)
    quotas.answer.set()
    walk = await walk_over(replace(resources, quotas=quotas))
    walk.engine.answer = None
    task = asyncio.create_task(walk.run())
    request_id = (await walk.engine.submitted()).request_id
    await walk.services.open_requests.renew()
    assert [hold.request_id for hold in quotas.renewed] == [request_id]
    walk.engine.finish(request_id)
    await task
    await walk.services.open_requests.renew()
    assert len(quotas.renewed) == 1
    walk.services.prompts.close()


async def test_a_hold_that_cannot_be_ended_leaves_the_request_settled(
    resources: Resources, caplog: pytest.LogCaptureFixture
) -> None:
    class Away(MemoryQuotas):
        async def settle(self, hold: Hold, actual: Amounts) -> None:
            raise QuotaBackendUnavailable("nobody answers")

    walk = await walk_over(replace(resources, quotas=Away(time.monotonic_ns)))
    await walk.run()
    assert len(await walk.usage()) == 1
    assert walk.services.open_requests.num_unsettled == 0
    assert "ends with its lease: nobody answers" in caplog.text
    walk.services.prompts.close()


async def test_holds_that_cannot_be_renewed_are_told_once(
    resources: Resources, caplog: pytest.LogCaptureFixture
) -> None:
    class Away(MemoryQuotas):
        async def renew(self, hold: Hold) -> None:
            raise QuotaBackendUnavailable("nobody answers")

    walk = await walk_over(replace(resources, quotas=Away(time.monotonic_ns)))
    walk.engine.answer = None
    tasks = [asyncio.create_task(walk.run()) for _ in range(2)]
    request_ids = [(await walk.engine.submitted()).request_id for _ in tasks]
    await walk.services.open_requests.renew()
    assert caplog.text.count("nobody answers") == 1
    for request_id in request_ids:
        walk.engine.finish(request_id)
    await asyncio.gather(*tasks)
    walk.services.prompts.close()


async def test_a_drain_waits_for_what_is_open(walk: Walk) -> None:
    walk.engine.answer = None
    task = asyncio.create_task(walk.run())
    request_id = (await walk.engine.submitted()).request_id
    assert await walk.services.open_requests.drain(0) is False
    drained = asyncio.create_task(walk.services.open_requests.drain(10))
    await walk.engine.settled()
    assert not drained.done()
    walk.engine.finish(request_id)
    await task
    assert await drained is True


def test_the_walk_fits_on_one_screen_and_knows_no_http() -> None:
    assert len(inspect.getsource(complete).splitlines()) <= 60
    source = inspect.getsource(completions)
    assert not any(name in source for name in ("fastapi", "starlette"))
