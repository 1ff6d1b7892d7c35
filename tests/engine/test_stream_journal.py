"""What a worker journals of requests that come by its stream, and tells their gateways of it."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.engine import build
from tests.engine.simulated_worker import SimulatedWorker, first_token, running
from tests.engine.test_stream import collect, connected

from loraplex.engine.client import StreamClient
from loraplex.engine.errors import JournalUnavailable, RequestRefused
from loraplex.engine.frames import UnixAddress
from loraplex.engine.journal_format import output_digest
from loraplex.engine.journal_protocol import JournalEntry


@pytest.fixture
def address(tmp_path: Path) -> UnixAddress:
    return UnixAddress(tmp_path / "w.sock")


@pytest.fixture
async def worker(address: UnixAddress) -> AsyncIterator[SimulatedWorker]:
    async with running(address) as worker:
        yield worker


async def entries_of(client: StreamClient, *request_ids: str) -> dict[str, JournalEntry]:
    report = await client.journal(request_ids)
    assert report is not None
    return {entry.request_id: entry for entry in report.entries}


async def test_what_was_delivered_ended_and_was_refused_is_in_the_journal(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    worker.runner.open()
    async with connected(address) as client:
        ids, finished = await collect(client, build.submit("a", 5, 7, accepted_at_s=7200.5))
        with pytest.raises(RequestRefused):
            await collect(client, build.submit("long", 5000, 1))
        entries = await entries_of(client, "a", "long", "never")
        assert entries["a"].usage == finished.usage
        assert entries["a"].accepted_at_s == 7200.5
        assert entries["a"].output_digest == finished.output_digest == output_digest([ids])
        assert entries["long"].reason == "rejected"
        assert "never" not in entries
        totals = await client.journal_totals(0, 1e12)
        assert totals is not None
        assert [(hour.start_s, hour.ended.usage) for hour in totals.hours] == [
            (7200, finished.usage)
        ]


async def test_what_a_gateway_that_left_had_open_is_journaled_as_an_abort(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    async with (
        connected(address) as leaving,
        aclosing(leaving.generate(build.submit("a", 3, 300))) as events,
    ):
        worker.runner.steps.release(2)
        await first_token(events)
        async with connected(address) as other:
            assert (await entries_of(other, "a"))["a"].state == "open"
            await leaving.close()
            worker.runner.open()
            await worker.step_where(lambda report: report.events.finished)
            entry = (await entries_of(other, "a"))["a"]
    assert (entry.state, entry.reason) == ("ended", "abort")
    assert entry.usage.completion_tokens >= 1


async def test_while_the_journal_fails_requests_are_refused_and_gateways_know(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    worker.runner.open()
    worker.journal._fail(OSError(28, "No space left on device"))
    async with connected(address) as client:
        with pytest.raises(JournalUnavailable):
            await collect(client, build.submit("a"))
        assert client.journal_failure == "No space left on device"
        await worker.journal.retry()
        await client.metrics()
        assert client.journal_failure == ""
        await collect(client, build.submit("a"))
