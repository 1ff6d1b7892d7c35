"""The worker's usage journal."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engine.journal_world import JournalWorld, Request, submit

from loraplex.engine import journal_log
from loraplex.engine.errors import (
    EngineOverloaded,
    JournalInUse,
    JournalUnavailable,
    RequestRefused,
)
from loraplex.engine.events import Events
from loraplex.engine.journal_format import RECORD_BYTES, output_digest
from loraplex.engine.journal_protocol import JournalHour, JournalSum, JournalTotalsQuery
from loraplex.engine.protocol import Rejected, Usage

HOUR_S = 3600
DAY_S = 24 * HOUR_S


def used(prompt: int = 0, cached: int = 0, completion: int = 0) -> Usage:
    return Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion)


def contents(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file())


def segments_with_records(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("usage-*") if path.stat().st_size > 8)


def change_byte(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def move_to_another_machine(folder: Path) -> None:
    mark = folder / "journal.json"
    mark.write_text(mark.read_text().replace('"boot_id":"', '"boot_id":"other-'))


async def test_a_request_is_open_with_its_counts_and_then_ended_with_its_usage(
    tmp_path: Path,
) -> None:
    world = JournalWorld(tmp_path)
    world.begin("a", num_prompt=5)
    assert (await world.report("a"))["a"].usage == used()
    world.step(("a", 0, 70000), ("a", 1, 4))
    entry = (await world.report("a", "never"))["a"]
    assert (entry.state, entry.usage) == ("open", used(prompt=5, completion=2))
    world.step(("a", 0, 6))
    told = world.end("a", "length")
    (entry,) = (await world.report("a")).values()
    assert (entry.state, entry.reason, entry.usage) == ("ended", "length", used(5, 1, 3))
    assert told.output_digest == entry.output_digest == output_digest([[70000, 6], [4]])
    assert entry.ended_at_s is not None
    assert entry.accepted_at_s == entry.began_at_s < entry.ended_at_s


async def test_refused_and_failed_requests_end_too(tmp_path: Path) -> None:
    world = JournalWorld(tmp_path)
    world.begin("a")
    world.begin("b")
    events = Events()
    events.rejected.append(Rejected(request_id="a", code="refused", message="m"))
    world.journal.note(events)
    world.end("b", None)
    entries = await world.report("a", "b")
    assert (entries["a"].reason, entries["a"].usage) == ("rejected", used())
    assert (entries["b"].reason, entries["b"].usage) == ("failed", used(3, 1))
    assert world.journal.num_open == 0


async def test_what_did_not_begin_here_is_passed_over(tmp_path: Path) -> None:
    world = JournalWorld(tmp_path)
    world.open["other"] = Request(3)
    world.step(("other", 0, 1))
    assert world.end("other").output_digest == b""
    assert await world.report("other") == {}


async def test_what_was_open_when_the_worker_died_is_ended_by_the_next(tmp_path: Path) -> None:
    world = JournalWorld(tmp_path)
    for name in ("a", "b", "c"):
        world.begin(name)
    world.step(("a", 0, 1), ("b", 0, 1))
    world.step(("a", 0, 1))
    world.end("b")
    began_s = await world.since_s()
    world.die()
    after = JournalWorld(tmp_path, now=world.now)
    entries = await after.report("a", "b", "c")
    assert {name: (e.state, e.usage) for name, e in entries.items()} == {
        "a": ("died", used(3, 0, 2)),
        "b": ("ended", used(3, 1, 1)),
        "c": ("died", used()),
    }
    assert entries["a"].output_digest == b""
    assert await after.since_s() == began_s
    after.die()
    again = JournalWorld(tmp_path, now=after.now)
    assert await again.report("a", "b", "c") == entries


PROGRAM = """
import sys
from pathlib import Path
from tests.engine.journal_world import JournalWorld

world = JournalWorld(Path(sys.argv[1]))
number = 0
while True:
    name = f"r{number}"
    world.begin(name)
    for token in range(number % 7):
        world.step((name, 0, token))
        print(name, token + 1, flush=True)
    if number % 3 or len(world.open) > 5:
        ended = name if number % 3 else next(iter(world.open))
        world.end(ended)
        print(ended, "ended", flush=True)
    number += 1
"""


def said_until_killed(folder: Path) -> list[str]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(3000)]
        process.send_signal(signal.SIGKILL)
        return said + process.stdout.readlines()


async def test_a_process_that_is_killed_leaves_all_that_it_said(tmp_path: Path) -> None:
    told: dict[str, int] = {}
    ended: set[str] = set()
    for line in said_until_killed(tmp_path):
        name, _, word = line.rstrip("\n").partition(" ")
        if not line.endswith("\n"):
            continue  # cut off in the pipe
        if word == "ended":
            ended.add(name)
        else:
            told[name] = int(word)
    after = JournalWorld(tmp_path, now=2e9)
    world = await after.report(*told, *ended)
    assert len(told) > 100
    for name, count in told.items():
        assert world[name].usage.completion_tokens >= count
    assert {name for name in ended if world[name].state != "ended"} == set()
    died = [entry for entry in world.values() if entry.state == "died"]
    assert {entry.request_id for entry in died}.isdisjoint(ended)


async def test_an_end_that_was_written_stays_though_its_slot_was_not_cleared(
    tmp_path: Path,
) -> None:
    world = JournalWorld(tmp_path)
    world.begin("a")
    before = (tmp_path / "open.table").read_bytes()
    world.end("a")
    world.die()
    (tmp_path / "open.table").write_bytes(before)
    assert (await JournalWorld(tmp_path).report("a"))["a"].state == "ended"


async def test_a_full_table_is_an_overload(tmp_path: Path) -> None:
    world = JournalWorld(tmp_path, max_open=1)
    world.begin("a")
    with pytest.raises(EngineOverloaded, match="1 requests are open"):
        world.journal.begin(submit("b"))
    world.end("a")
    world.begin("b")


async def test_an_id_that_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    world = JournalWorld(tmp_path)
    with pytest.raises(RequestRefused, match="81 bytes") as refused:
        world.journal.begin(submit("a" * 81))
    assert refused.value.field == "request_id"
    assert await world.report("a" * 81) == {}


async def test_an_id_that_is_open_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    world = JournalWorld(tmp_path)
    world.begin("a")
    world.step(("a", 0, 1))
    with pytest.raises(RequestRefused, match="open already"):
        world.journal.begin(submit("a"))
    assert (await world.report("a"))["a"].usage.completion_tokens == 1
    world.end("a")
    world.die()
    assert (await JournalWorld(tmp_path).report("a"))["a"].state == "ended"


async def test_two_workers_do_not_share_a_folder(tmp_path: Path) -> None:
    JournalWorld(tmp_path)
    with pytest.raises(JournalInUse, match="LORAPLEX_JOURNAL_DIR"):
        JournalWorld(tmp_path)


async def test_no_token_id_and_no_text_is_on_the_disk(tmp_path: Path) -> None:
    world = JournalWorld(tmp_path)
    world.begin("a")
    world.step(*[("a", 0, 0x12345678)] * 3)
    files = contents(tmp_path)
    world.end("a")
    files += contents(tmp_path)
    assert b"secret" not in files
    assert (0x12345678).to_bytes(4, "little") not in files
    assert b"a" in files


async def test_a_disk_that_is_full_stops_new_requests_only_and_loses_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = JournalWorld(tmp_path)
    for name in ("a", "b"):
        world.begin(name)
    world.step(("a", 0, 1), ("b", 0, 1))

    def is_full(file: int, data: bytes) -> None:
        os.write(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(journal_log, "_write", is_full)
        assert world.end("a").output_digest == output_digest([[1]])
        assert "No space" in world.journal.failure
        with pytest.raises(JournalUnavailable, match="takes none"):
            world.begin("c")
        world.step(("b", 0, 1))
        world.end("b")
        await world.journal.retry()
        assert world.journal.failure
        assert {entry.state for entry in (await world.report("a", "b")).values()} == {"ended"}
    await world.journal.retry()
    assert not world.journal.failure
    world.begin("c")
    await world.journal.sync()
    world.die()
    entries = await JournalWorld(tmp_path, now=world.now).report("a", "b", "c")
    assert [entries[name].state for name in ("a", "b", "c")] == ["ended", "ended", "died"]
    assert entries["b"].usage.completion_tokens == 2


async def test_what_a_failing_disk_may_have_lost_is_written_again_and_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = JournalWorld(tmp_path)
    world.begin("a", accepted_at_s=10 * HOUR_S)
    world.end("a")

    def fails(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as context:
        context.setattr(os, "fdatasync", fails)
        await world.journal.sync()
        assert "Input/output" in world.journal.failure
    await world.journal.retry()
    await world.journal.sync()
    assert len(segments_with_records(tmp_path)) == 2
    totals = await world.journal.totals(JournalTotalsQuery(0, 0, 1e9))
    assert [hour.ended.num_requests for hour in totals.hours] == [1]


async def test_sums_go_by_the_hour_in_which_the_gateway_accepted_a_request(
    tmp_path: Path,
) -> None:
    world = JournalWorld(tmp_path, now=100 * HOUR_S)
    for name, hour in (("a", 98), ("b", 98), ("c", 99), ("nothing", 98), ("open", 98)):
        world.begin(name, accepted_at_s=hour * HOUR_S + 3599.5)
    world.step(("a", 0, 1), ("b", 0, 1), ("c", 0, 1), ("a", 0, 1))
    for name in ("a", "b"):
        world.end(name)
    events = Events()
    events.rejected.append(Rejected(request_id="nothing", code="refused", message="m"))
    world.journal.note(events)
    world.die()
    after = JournalWorld(tmp_path, now=world.now)
    totals = await after.journal.totals(JournalTotalsQuery(0, 98 * HOUR_S, 100 * HOUR_S))
    none = JournalSum(num_requests=0, usage=used())
    both, one = (
        JournalSum(num_requests=n, usage=u) for n, u in ((2, used(6, 2, 3)), (1, used(3, 0, 1)))
    )
    assert totals.hours == (
        JournalHour(start_s=98 * HOUR_S, ended=both, died=none),
        JournalHour(start_s=99 * HOUR_S, ended=none, died=one),
    )
    assert (await after.journal.totals(JournalTotalsQuery(0, 0, 98 * HOUR_S))).hours == ()


async def test_a_segment_lasts_a_day_and_is_removed_after_seven(tmp_path: Path) -> None:
    world = JournalWorld(tmp_path, now=0.0)
    for day in range(10):
        world.now = max(world.now, day * DAY_S)
        world.begin(f"r{day}")
        world.end(f"r{day}")
        await world.journal.sync()
    names = [f"r{day}" for day in range(10)]
    assert list(await world.report(*names)) == sorted(names[2:], reverse=True)
    assert await world.since_s() == pytest.approx(2 * DAY_S, abs=10)


async def test_a_segment_that_was_changed_is_passed_over_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = JournalWorld(tmp_path)
    for name in ("a", "b", "c"):
        world.begin(name)
        world.end(name)
    await world.journal.sync()
    (path,) = segments_with_records(tmp_path)
    change_byte(path, 8 + RECORD_BYTES + 100)
    before_s = world.now
    assert set(await world.report("a", "b", "c")) == {"a", "c"}
    assert "1 damaged records" in caplog.text
    assert await world.since_s() >= before_s - 1


@pytest.mark.parametrize("is_same_boot", [True, False])
async def test_after_a_loss_of_power_nothing_is_promised_of_the_time_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_same_boot: bool
) -> None:
    world = JournalWorld(tmp_path)
    since_s = await world.since_s()
    world.die()
    if not is_same_boot:
        move_to_another_machine(tmp_path)
    after = JournalWorld(tmp_path, now=since_s + 100)
    assert (await after.since_s() == since_s) is is_same_boot


async def test_a_journal_that_was_closed_is_whole_on_any_machine(tmp_path: Path) -> None:
    world = JournalWorld(tmp_path)
    since_s = await world.since_s()
    await world.journal.close()
    move_to_another_machine(tmp_path)
    assert await JournalWorld(tmp_path, now=since_s + 100).since_s() == since_s


async def test_what_ended_is_on_the_disk_soon_and_the_keeper_of_it_ends_when_told(
    tmp_path: Path,
) -> None:
    world = JournalWorld(tmp_path)
    world.begin("a")
    world.end("a")
    keeping = asyncio.create_task(world.journal.keep_synced())
    while world.journal._unsynced:  # noqa: ASYNC110  nothing else tells that it was brought there
        await asyncio.sleep(0)
    world.journal.stop()
    await keeping
