"""Whatever a worker journaled, and wherever its files were cut: what the next one makes of them."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st
from tests.engine.journal_world import JournalWorld, Request

from loraplex.engine.errors import EngineOverloaded
from loraplex.engine.journal_format import RECORD_BYTES
from loraplex.engine.journal_protocol import JournalEntry

NAMES = st.sampled_from([f"r{number}" for number in range(6)])
BEGINS = st.tuples(st.just("begin"), NAMES)
ENDS = st.tuples(st.just("end"), NAMES)
STEPS = st.tuples(st.just("step"), st.lists(st.tuples(NAMES, st.integers(0, 1)), max_size=6))
OPS = st.lists(BEGINS | ENDS | STEPS | st.just(("sync", "")), max_size=40)
MAX_OPEN = 4
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


async def played(folder: Path, ops: list[tuple[str, object]]) -> JournalWorld:
    world = JournalWorld(folder, MAX_OPEN)
    for op, what in ops:
        if op == "begin" and what not in world.open and what not in world.ended:
            try:
                world.begin(str(what))
            except EngineOverloaded:
                assert len(world.open) == MAX_OPEN
        elif op == "end" and what in world.open:
            world.end(str(what))
        elif op == "step":
            assert isinstance(what, list)
            world.step(*[(name, choice, 7) for name, choice in what if name in world.open])
        elif op == "sync":
            await world.journal.sync()
    world.die()
    return world


def check_not_invented(world: JournalWorld, entries: dict[str, JournalEntry]) -> None:
    for name, entry in entries.items():
        ended = world.ended.get(name)
        request = ended or world.open[name]
        if entry.state == "ended":
            assert ended is not None
            assert (entry.usage, entry.output_digest) == (ended.usage, ended.digest)
        else:
            assert entry.state == "died"
            assert entry.usage.completion_tokens <= request.num_tokens
            assert entry.output_digest == b""


def is_as_it_was(name: str, request: Request, entry: JournalEntry, *, has_ended: bool) -> bool:
    usage = entry.usage
    if has_ended:
        return (entry.state, usage) == ("ended", request.usage)
    return (entry.state, usage.completion_tokens) == ("died", request.num_tokens)


@given(OPS)
def test_a_worker_that_died_leaves_all_that_was_sent(ops: list[tuple[str, object]]) -> None:
    async def body(folder: Path) -> None:
        world = await played(folder, ops)
        known = world.open | world.ended
        after = JournalWorld(folder, MAX_OPEN, world.now)
        entries = await after.report(*known)
        after.die()
        assert entries.keys() == known.keys()
        for name, request in known.items():
            assert is_as_it_was(name, request, entries[name], has_ended=name in world.ended)

    with TemporaryDirectory(dir=MEMORY) as folder:
        asyncio.run(body(Path(folder)))


@given(OPS, st.sampled_from(["table", "log", "mark"]), st.floats(0, 1))
def test_files_that_were_cut_give_what_is_left_and_invent_nothing(
    ops: list[tuple[str, object]], which: str, part: float
) -> None:
    async def body(folder: Path) -> None:
        world = await played(folder, ops)
        num_whole = cut(folder, which, part)
        after = JournalWorld(folder, MAX_OPEN, world.now)
        entries = await after.report(*world.open, *world.ended)
        again_s = await after.since_s()
        after.die()
        check_not_invented(world, entries)
        if which != "log":
            assert world.ended.keys() <= entries.keys()
        else:
            assert (
                list(world.ended)[:num_whole]
                == [n for n in world.ended if n in entries][:num_whole]
            )
            assert world.open.keys() <= entries.keys()
        if world.open.keys() - entries.keys() or which == "mark":
            assert again_s >= world.now or part == 1

    with TemporaryDirectory(dir=MEMORY) as folder:
        asyncio.run(body(Path(folder)))


def cut(folder: Path, which: str, part: float) -> int:
    """Leave this part of a file; return how many records of the log are whole."""
    logs = sorted(folder.glob("usage-*"))
    if which == "log" and not logs:
        return 0
    path = {"table": folder / "open.table", "mark": folder / "journal.json"}.get(which)
    path = path or logs[-1]
    data = path.read_bytes()
    num_bytes = int(part * len(data))
    path.write_bytes(data[:num_bytes])
    return max(0, num_bytes - 8) // RECORD_BYTES
