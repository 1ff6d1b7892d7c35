"""Settlement while the ledger fails, and at the platform's end."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError
from tests.platform.conftest import NOW
from tests.platform.scripted_engine import ScriptedEngine, says
from tests.platform.walking import AWAY, FailingDatabase, Walk, walk_over

from loraplex.engine.protocol import Finished
from loraplex.platform import ledger_writer, open_requests
from loraplex.platform.completions import Admitted, complete
from loraplex.platform.errors import EngineStopped, LedgerUnavailable
from loraplex.platform.services import Resources
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.prices import TokenPrices, set_price
from loraplex.tenants.quotas_memory import MemoryQuotas
from loraplex.tenants.reservations import Hold


@pytest.fixture
def gateway_database_url(database_url: str) -> str:
    return database_url


@pytest.fixture
async def walk(resources: Resources) -> AsyncIterator[Walk]:
    walk = await walk_over(resources)
    yield walk
    walk.services.prompts.close()


@pytest.fixture
async def failing(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Walk, FailingDatabase]]:
    monkeypatch.setattr(ledger_writer, "MIN_BACKOFF_S", 0.0)
    database = FailingDatabase(resources.database)
    walk = await walk_over(replace(resources, database=database))
    yield walk, database
    walk.services.prompts.close()


def fail_once_it_runs(walk: Walk, database: FailingDatabase, error: Exception) -> None:
    """Let the database take the intents of requests, and fail when these have run."""

    def answer(engine: ScriptedEngine, request_id: str) -> None:
        database.error = error
        says("Hel", "lo", "!")(engine, request_id)

    walk.engine.answer = answer


def logged_usage(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Usage that is in the log because it is not in the ledger."""
    return [each.fields["usage"] for each in caplog.records if hasattr(each, "fields")]


async def test_no_usage_is_lost_however_often_the_ledger_fails_before_it_works(
    failing: tuple[Walk, FailingDatabase],
) -> None:
    walk, database = failing
    fail_once_it_runs(walk, database, AWAY)
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
    fail_once_it_runs(walk, database, AWAY)
    *_, finished = await walk.run()
    assert isinstance(finished, Finished)
    assert (await walk.resources.quotas.in_use(walk.tenant_id)).requests == 1
    renewed: list[str] = []

    async def renew(_: object, hold: Hold) -> None:
        renewed.append(hold.request_id)

    monkeypatch.setattr(MemoryQuotas, "renew", renew)
    await walk.services.open_requests.renew()
    assert renewed == walk.ids
    database.error = None
    await walk.assert_settled()
    assert len(await walk.usage()) == 1


async def test_while_usage_waits_for_the_ledger_no_request_is_admitted(
    failing: tuple[Walk, FailingDatabase],
) -> None:
    walk, database = failing
    fail_once_it_runs(walk, database, AWAY)
    task = asyncio.create_task(walk.run())
    await database.fail_times(1)
    with pytest.raises(LedgerUnavailable):
        await walk.run()
    assert len(walk.services.open_requests) == 1
    walk.engine.answer = says("x")
    database.error = None
    await task
    await walk.run()
    assert [row.request_id for row in await walk.usage()] == [walk.ids[2], walk.ids[0]]
    await walk.assert_settled()


async def test_a_record_that_the_ledger_refuses_is_in_the_log_and_its_hold_is_settled(
    failing: tuple[Walk, FailingDatabase], caplog: pytest.LogCaptureFixture
) -> None:
    walk, database = failing
    fail_once_it_runs(walk, database, IntegrityError("insert", {}, Exception("no such tenant")))
    *_, finished = await walk.run()
    assert isinstance(finished, Finished)
    assert database.num_failures == 1
    database.error = None
    assert [usage["request_id"] for usage in logged_usage(caplog)] == walk.ids
    assert await walk.usage() == []
    await walk.assert_settled()
    assert walk.services.open_requests.num_unsettled == 1
    assert b"loraplex_settlement_failures_total 1.0" in walk.services.metrics.text()


async def test_what_is_broken_off_ends_with_an_error_is_recorded_and_costs_nothing(
    walk: Walk,
) -> None:
    walk.engine.answer = None
    async with walk.resources.database.session() as session:
        tokens = TokenPrices(prompt_micros=1, cached_micros=1, completion_micros=1)
        await set_price(session, "EUR", tokens, NOW, Act(CLI, NOW), secrets.token_bytes)
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
    fail_once_it_runs(walk, database, AWAY)
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
