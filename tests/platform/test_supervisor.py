"""The worker's supervisor: what ends it, and what makes it start a worker again."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loraplex.platform import supervisor
from loraplex.platform.settings import Settings
from loraplex.platform.supervisor import START_REFUSED, WorkerRefusedStart, WorkerSupervisor


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "MIN_BACKOFF_S", 0.0)


class Served:
    """Says that a worker has served, and tells each time that it was asked."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[None] = asyncio.Queue()

    def __call__(self) -> bool:
        self.asked.put_nowait(None)
        return True


def supervise(tmp_path: Path, status: int, has_served: Callable[[], bool]) -> WorkerSupervisor:
    """A supervisor of a worker that ends with this status as soon as it is started."""
    command = (sys.executable, "-S", "-c", f"raise SystemExit({status})")
    return WorkerSupervisor(Settings(data_dir=tmp_path), has_served, command)


async def test_a_worker_that_cannot_start_ends_the_platform(tmp_path: Path) -> None:
    with pytest.raises(WorkerRefusedStart):
        await supervise(tmp_path, START_REFUSED, lambda: False).run()


async def test_once_a_worker_has_served_one_that_cannot_start_is_started_again_and_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served()
    supervised = supervise(tmp_path, START_REFUSED, served)
    running = asyncio.create_task(supervised.run())
    async with asyncio.timeout(30):
        for _ in range(3):
            await served.asked.get()
        await supervised.stop(10)
        await running
    assert caplog.text.count(f"the worker died with status {START_REFUSED}") >= 2


async def test_a_worker_that_crashes_is_started_again_even_before_it_has_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: asyncio.Queue[str] = asyncio.Queue()
    supervised = supervise(tmp_path, 1, lambda: False)
    monkeypatch.setattr(
        supervisor._log, "error", lambda message, *values: logged.put_nowait(message % values)
    )
    running = asyncio.create_task(supervised.run())
    async with asyncio.timeout(30):
        for _ in range(2):
            assert await logged.get() == "the worker died with status 1; starting it again"
        await supervised.stop(10)
        await running


async def test_a_worker_that_dies_three_times_before_it_served_ends_the_platform(
    tmp_path: Path,
) -> None:
    with pytest.raises(WorkerRefusedStart, match="died 3 times before it could serve"):
        await supervise(tmp_path, 1, lambda: False).run()


async def test_a_restart_that_the_machine_refuses_is_tried_again_once_a_worker_has_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served()
    absent = (str(tmp_path / "absent"),)
    supervised = WorkerSupervisor(Settings(data_dir=tmp_path), served, absent)
    running = asyncio.create_task(supervised.run())
    async with asyncio.timeout(30):
        for _ in range(6):
            await served.asked.get()
        await supervised.stop(10)
        await running
    assert caplog.text.count("a worker could not be started") >= 2


async def test_a_first_start_that_the_machine_refuses_ends_the_platform(tmp_path: Path) -> None:
    absent = (str(tmp_path / "absent"),)
    with pytest.raises(FileNotFoundError):
        await WorkerSupervisor(Settings(data_dir=tmp_path), lambda: False, absent).run()
