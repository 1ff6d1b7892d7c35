"""What a worker must know of an adapter is read beside the steps, not by the engine's thread."""

import asyncio
import threading
from pathlib import Path

import pytest
from tests.engine.self_test.test_verifier import request, run
from tests.engine.self_test.world import World, running

from loraplex.adapters.storage import AdapterStore
from loraplex.engine.runner import ModelRunner


class Openings:
    """Notes on which threads an adapter's files are opened, and may keep them waiting."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[str] = []
        self.begun = asyncio.Event()
        self.allowed = threading.Event()
        self.allowed.set()
        self._loop = asyncio.get_running_loop()
        self._open = world.store.open
        monkeypatch.setattr(AdapterStore, "open", lambda _, digest: self.open(digest))

    def open(self, digest: str) -> Path:
        self.threads.append(threading.current_thread().name)
        self._loop.call_soon_threadsafe(self.begun.set)
        assert self.allowed.wait(60)
        return self._open(digest)


async def test_the_engine_s_thread_opens_no_adapter(
    runner: ModelRunner, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(runner, tmp_path) as world:
        digest = world.put(adapter)
        openings = Openings(world, monkeypatch)
        first = await run(world, request("first", digest))
        assert first == await run(world, request("again", digest))
        assert len(first) == 60
    assert world.engine_thread not in openings.threads
    assert sum(name.startswith("adapter-sizes") for name in openings.threads) == 1


async def test_a_slow_store_delays_nobody_else_and_a_client_that_leaves_waits_for_nothing(
    runner: ModelRunner, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(runner, tmp_path) as world:
        digest = world.put(adapter)
        openings = Openings(world, monkeypatch)
        openings.allowed.clear()
        leaves = asyncio.create_task(run(world, request("leaves", digest)))
        stays = asyncio.create_task(run(world, request("stays", digest)))
        await openings.begun.wait()
        assert len(await run(world, request("base", None))) == 60
        leaves.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaves
        async with asyncio.timeout(60):
            while await world.ended.get() != "leaves":
                pass
        openings.allowed.set()
        assert len(await stays) == 60
