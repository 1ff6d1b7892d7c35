"""The walk without HTTP: whatever happens, each request is settled exactly once."""

import asyncio
import inspect
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from tests.platform.conftest import DEFAULTS, NOW, chat_body, make_tenant
from tests.platform.scripted_engine import ScriptedEngine, says

from loraplex.engine.errors import (
    EngineError,
    EngineNotReached,
    EngineOverloaded,
    EngineUnavailable,
    RequestFailed,
    RequestRefused,
)
from loraplex.engine.protocol import Finished, Tokens
from loraplex.platform import completions, ledger_writer, open_requests
from loraplex.platform.api.bodies import parse
from loraplex.platform.api.chat_schema import ChatBody
from loraplex.platform.completions import Admitted, Call, CompletionRequest, complete
from loraplex.platform.errors import EngineStopped, KeyMissing, LedgerUnavailable
from loraplex.platform.services import Resources, Services, build_services
from loraplex.tenants.db import Database
from loraplex.tenants.errors import (
    KeyMalformed,
    QuotaBackendUnavailable,
    QuotaExceeded,
    RequestExceedsLimit,
)
from loraplex.tenants.ledger import UsageRecord, list_usage
from loraplex.tenants.prices import TokenPrices, set_price
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


AWAY = OperationalError("insert", {}, Exception("away"))


class FailingDatabase:
    """A database whose writes fail as long as `error` says with what."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.error: Exception | None = None
        self.num_failures = 0
        self.failed = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncSession]:
        if self.error is not None:
            self.num_failures += 1
            self.failed.set()
            raise self.error
        async with self._database.session() as session:
            yield session

    async def fail_times(self, number: int) -> None:
        """Return when that many writes have failed."""
        while self.num_failures < number:
            self.failed.clear()
            await self.failed.wait()


@pytest.fixture
async def failing(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Walk, FailingDatabase]]:
    monkeypatch.setattr(ledger_writer, "MIN_BACKOFF_S", 0.0)
    database = FailingDatabase(resources.database)
    walk = await walk_over(replace(resources, database=database))
    yield walk, database
    walk.services.prompts.close()


def logged_usage(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Usage that is in the log because it is not in the ledger."""
    return [each.fields["usage"] for each in caplog.records if hasattr(each, "fields")]


async def test_no_usage_is_lost_however_often_the_ledger_fails_before_it_works(
    failing: tuple[Walk, FailingDatabase],
) -> None:
    walk, database = failing
    database.error = AWAY
    task = asyncio.create_task(walk.run())
    await database.fail_times(50)
    database.error = None
    await task
    assert len(await walk.usage()) == 1
    await walk.assert_settled()
    assert walk.services.open_requests.num_unsettled == 0


async def test_an_answer_does_not_wait_for_a_ledger_that_stays_away_but_its_hold_does(
    failing: tuple[Walk, FailingDatabase], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_requests, "ANSWER_WAIT_S", 0.0)
    walk, database = failing
    database.error = AWAY
    *_, finished = await walk.run()
    assert isinstance(finished, Finished)
    assert (await walk.resources.quotas.in_use(walk.tenant_id)).requests == 1
    await walk.services.open_requests.renew()
    database.error = None
    await walk.assert_settled()
    assert len(await walk.usage()) == 1


async def test_while_usage_waits_for_the_ledger_no_request_is_admitted(
    failing: tuple[Walk, FailingDatabase],
) -> None:
    walk, database = failing
    database.error = AWAY
    task = asyncio.create_task(walk.run())
    await database.fail_times(1)
    with pytest.raises(LedgerUnavailable):
        await walk.run()
    assert len(walk.services.open_requests) == 1
    database.error = None
    await task
    await walk.run()
    assert [row.request_id for row in await walk.usage()] == [walk.ids[2], walk.ids[0]]
    await walk.assert_settled()


async def test_a_record_that_the_ledger_refuses_is_in_the_log_and_its_hold_is_settled(
    failing: tuple[Walk, FailingDatabase], caplog: pytest.LogCaptureFixture
) -> None:
    walk, database = failing
    database.error = IntegrityError("insert", {}, Exception("no such tenant"))
    *_, finished = await walk.run()
    assert isinstance(finished, Finished)
    assert database.num_failures == 1
    database.error = None
    assert [usage["request_id"] for usage in logged_usage(caplog)] == walk.ids
    assert await walk.usage() == []
    await walk.assert_settled()
    assert walk.services.open_requests.num_unsettled == 1
    assert b"loraplex_settlement_failures_total 1.0" in walk.services.metrics.text()


async def test_a_hold_that_cannot_be_ended_leaves_the_request_settled(
    resources: Resources, caplog: pytest.LogCaptureFixture
) -> None:
    class Away(MemoryQuotas):
        async def settle(self, hold: Hold, actual_tokens: int) -> None:
            raise QuotaBackendUnavailable("nobody answers")

    walk = await walk_over(replace(resources, quotas=Away(DEFAULTS, time.monotonic_ns)))
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


async def test_what_is_broken_off_ends_with_an_error_is_recorded_and_costs_nothing(
    walk: Walk,
) -> None:
    walk.engine.answer = None
    async with walk.resources.database.session() as session:
        tokens = TokenPrices(prompt_micros=1, cached_micros=1, completion_micros=1)
        await set_price(session, "EUR", tokens, NOW, NOW, secrets.token_bytes)
    task = asyncio.create_task(walk.run())
    submit = await walk.engine.submitted()
    walk.engine.emit(submit.request_id, "x")
    await walk.services.open_requests.settle_all(10)
    with pytest.raises(EngineStopped):
        await task
    (row,) = await walk.usage()
    assert (row.finish_reason, row.completion_tokens, row.cost_pico) == ("error", 1, 0)
    assert row.price_id is not None
    await walk.assert_settled()
    with pytest.raises(EngineStopped):
        await walk.run()


async def test_what_was_admitted_when_all_was_broken_off_does_not_run(walk: Walk) -> None:
    async with aclosing(complete(walk.call(), walk.services)) as events:
        assert isinstance(await anext(events), Admitted)
        await walk.services.open_requests.settle_all(10)
        with pytest.raises(EngineStopped):
            await anext(events)
    assert walk.engine.runs == {}
    assert await walk.usage() == []
    await walk.assert_settled()


async def test_what_a_database_that_stays_away_lacks_at_the_end_stands_in_the_log(
    failing: tuple[Walk, FailingDatabase], caplog: pytest.LogCaptureFixture
) -> None:
    walk, database = failing
    database.error = AWAY
    task = asyncio.create_task(walk.run())
    await database.fail_times(1)
    await walk.services.open_requests.settle_all(0)
    await task
    assert [usage["request_id"] for usage in logged_usage(caplog)] == walk.ids
    assert walk.services.open_requests.num_unsettled == 1
    await walk.assert_settled()


async def test_of_a_worker_that_does_not_answer_at_the_end_the_log_has_what_it_delivered(
    resources: Resources, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(ScriptedEngine):
        async def abort(self, request_id: str) -> Finished | None:
            return await asyncio.get_running_loop().create_future()

    walk = await walk_over(replace(resources, engine=Stuck(resources.engine.model)))
    async with aclosing(complete(walk.call(), walk.services)) as events:
        await anext(events)
        first = asyncio.create_task(anext(events))
        walk.engine.emit((await walk.engine.submitted()).request_id, "x", "y")
        await first
        await walk.services.open_requests.settle_all(0)
    (usage,) = logged_usage(caplog)
    assert (usage["completion_tokens"], usage["finish_reason"]) == (2, "error")
    assert walk.services.open_requests.num_unsettled == 1
    await walk.assert_settled()
    walk.services.prompts.close()


def test_the_walk_fits_on_one_screen_and_knows_no_http() -> None:
    assert len(inspect.getsource(complete).splitlines()) <= 60
    source = inspect.getsource(completions)
    assert not any(name in source for name in ("fastapi", "starlette"))
