"""What every engine client promises of the worker's journal."""

from tests.contracts.engine_pairs import Pair

from loraplex.engine.client import EngineClient
from loraplex.engine.journal_protocol import JournalEntry, JournalHour, JournalSum
from loraplex.engine.protocol import Usage


def entry(request_id: str) -> JournalEntry:
    usage = Usage(prompt_tokens=3, cached_tokens=2, completion_tokens=1)
    return JournalEntry(
        request_id=request_id,
        state="ended",
        usage=usage,
        reason="abort",
        output_digest=bytes(16),
        accepted_at_s=10.0,
        began_at_s=10.5,
        ended_at_s=11.0,
    )


async def test_the_journal_tells_of_the_requests_that_it_knows(pair: Pair) -> None:
    pair.engine.journaled.entries = {"a": entry("a"), "b": entry("b")}
    pair.engine.journaled.since_s = 5.0
    report = await pair.client.journal(["never", "b"], accepted_from_s=9.0)
    assert report is not None
    assert (report.entries, report.since_s) == ((entry("b"),), 5.0)
    assert pair.engine.journaled.asked_from_s == [9.0]


async def test_the_journals_sums_are_those_of_the_hours_that_begin_in_a_time(pair: Pair) -> None:
    total = JournalSum(num_requests=1, usage=entry("a").usage)
    hours = [JournalHour(start_s=start, ended=total, died=total) for start in (0, 3600, 7200)]
    pair.engine.journaled.hours = hours
    totals = await pair.client.journal_totals(3600.0, 7200.0)
    assert totals is not None
    assert totals.hours == (hours[1],)


async def test_nobody_tells_of_requests_before_a_worker_came(unconnected: EngineClient) -> None:
    assert await unconnected.journal(["a"]) is None
    assert await unconnected.journal_totals(0.0, 1.0) is None


async def test_a_journal_that_fails_is_told_until_it_works_again(pair: Pair) -> None:
    assert pair.client.journal_failure == ""
    pair.engine.fail_journal("No space left on device")
    await pair.engine.settled()
    assert pair.client.journal_failure == "No space left on device"
    pair.engine.fail_journal("")
    await pair.engine.settled()
    assert pair.client.journal_failure == ""
