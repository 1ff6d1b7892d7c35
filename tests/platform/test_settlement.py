"""The walk without HTTP: whatever happens, each request is settled exactly once."""

import asyncio
import inspect
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from tests.platform.conftest import DEFAULTS, chat_body, make_tenant
from tests.platform.scripted_engine import ScriptedEngine, says

from loraplex.engine.errors import (
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    RequestFailed,
    RequestRefused,
)
from loraplex.engine.protocol import Finished, Tokens
from loraplex.platform import completions, open_requests
from loraplex.platform.api.bodies import parse
from loraplex.platform.api.chat_schema import ChatBody
from loraplex.platform.completions import Admitted, Call, CompletionRequest, complete
from loraplex.platform.errors import EngineStopped, KeyMissing
from loraplex.platform.services import Resources, Services, build_services
from loraplex.tenants.db import Database
from loraplex.tenants.errors import (
    KeyMalformed,
    QuotaBackendUnavailable,
    QuotaExceeded,
    RequestExceedsLimit,
)
from loraplex.tenants.ledger import UsageRecord, list_usage
from loraplex.tenants.quotas import Hold, MemoryQuotas, Quotas, Reservation


@dataclass
class Walk:
    """A platform without a server, and one tenant's calls to it."""

    resources: Resources
    services: Services
    tenant_id: str
    key: str
    ids: list[str] = field(default_factory=list)

    @property
    def engine(self) -> ScriptedEngine:
        engine = self.resources.engine
        assert isinstance(engine, ScriptedEngine)
        return engine

    def call(self, key: str | None = None, **fields: object) -> Call:
        async def read() -> CompletionRequest:
            return parse(json.dumps(chat_body(**fields)).encode(), ChatBody).to_request()

        self.ids.append(f"req_{len(self.ids)}")
        return Call(self.ids[-1], key or self.key, read)

    async def run(self, **fields: object) -> list[Any]:
        return [event async for event in complete(self.call(**fields), self.services)]

    async def usage(self) -> list[UsageRecord]:
        async with self.resources.database.reader() as session:
            return await list_usage(session, self.tenant_id)

    async def assert_settled(self) -> None:
        await self.services.open_requests.drain(10)
        assert len(self.services.open_requests) == 0
        in_use = await self.resources.quotas.in_use(self.tenant_id)
        assert (in_use.requests, in_use.tokens) == (0, 0)
        await self.resources.quotas.check()


@pytest.fixture
def gateway_database_url(database_url: str) -> str:
    return database_url


async def walk_over(resources: Resources, **limits: int) -> Walk:
    tenant, key = await make_tenant(resources, "acme", **limits)
    return Walk(resources, build_services(resources), tenant.id, key)


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


class FailingDatabase:
    """A database whose next writes fail."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.num_failures = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncSession]:
        if self.num_failures:
            self.num_failures -= 1
            raise OperationalError("insert", {}, Exception("away"))
        async with self._database.session() as session:
            yield session


@pytest.fixture
async def failing(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Walk, FailingDatabase]]:
    monkeypatch.setattr(open_requests, "APPEND_DELAYS_S", (0.0, 0.0, 0.0))
    database = FailingDatabase(resources.database)
    walk = await walk_over(replace(resources, database=database))
    yield walk, database
    walk.services.prompts.close()


async def test_a_database_that_is_away_for_a_moment_loses_no_usage(
    failing: tuple[Walk, FailingDatabase],
) -> None:
    walk, database = failing
    database.num_failures = 2
    await walk.run()
    assert len(await walk.usage()) == 1
    await walk.assert_settled()


async def test_usage_that_cannot_be_written_is_in_the_log_and_the_hold_is_settled(
    failing: tuple[Walk, FailingDatabase], caplog: pytest.LogCaptureFixture
) -> None:
    walk, database = failing
    database.num_failures = 3
    with caplog.at_level(logging.ERROR):
        *_, finished = await walk.run()
    assert isinstance(finished, Finished)
    lost = [record for record in caplog.records if hasattr(record, "fields")]
    assert [record.fields["usage"]["request_id"] for record in lost] == walk.ids
    assert await walk.usage() == []
    await walk.assert_settled()
    assert b"loraplex_settlement_failures_total 1.0" in walk.services.metrics.text()


async def test_holds_that_cannot_be_renewed_are_told_once(
    resources: Resources, caplog: pytest.LogCaptureFixture
) -> None:
    class Away(MemoryQuotas):
        async def renew(self, hold: Hold) -> None:
            raise QuotaBackendUnavailable("nobody answers")

    walk = await walk_over(replace(resources, quotas=Away(DEFAULTS, time.monotonic_ns)))
    walk.engine.answer = None
    tasks = [asyncio.create_task(walk.run()) for _ in range(2)]
    request_ids = [(await walk.engine.submitted()).request_id for _ in tasks]
    await walk.services.open_requests.renew()
    assert caplog.text.count("nobody answers") == 1
    for request_id in request_ids:
        walk.engine.finish(request_id)
    await asyncio.gather(*tasks)
    walk.services.prompts.close()


async def test_shutdown_waits_for_what_is_open(walk: Walk) -> None:
    walk.engine.answer = None
    task = asyncio.create_task(walk.run())
    request_id = (await walk.engine.submitted()).request_id
    drained = asyncio.create_task(walk.services.open_requests.drain(10))
    await walk.engine.settled()
    assert not drained.done()
    walk.engine.finish(request_id)
    await task
    await drained


async def test_shutdown_names_what_it_gave_up_on(
    walk: Walk, caplog: pytest.LogCaptureFixture
) -> None:
    walk.engine.answer = None
    task = asyncio.create_task(walk.run())
    request_id = (await walk.engine.submitted()).request_id
    await walk.services.open_requests.drain(0)
    assert request_id in caplog.text
    walk.engine.finish(request_id)
    await task


def test_the_walk_fits_on_one_screen_and_knows_no_http() -> None:
    assert len(inspect.getsource(complete).splitlines()) <= 60
    source = inspect.getsource(completions)
    assert not any(name in source for name in ("fastapi", "starlette"))
