"""Tests of adapters on the stream: they end with what asked for them, and with the worker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.engine.simulated_worker import SimulatedWorker, running

from loraplex.engine.client import StreamClient
from loraplex.engine.errors import EngineUnavailable
from loraplex.engine.frames import Security, UnixAddress


@asynccontextmanager
async def worker_and_client(folder: Path) -> AsyncIterator[tuple[SimulatedWorker, StreamClient]]:
    """A worker, and a client that connects to it."""
    address = UnixAddress(folder / "w.sock")
    client = StreamClient(address, Security(), 1000)
    async with running(address) as worker:
        client.start()
        async with asyncio.timeout(30):
            await client.wait_connected()
        yield worker, client
        await client.close()


async def test_a_worker_that_shuts_down_ends_its_tests_at_once(tmp_path: Path) -> None:
    async with worker_and_client(tmp_path) as (worker, client):
        test = asyncio.create_task(client.verify("acme", "d1"))
        assert (await worker.tests_begun.get()).adapter == "d1"
        assert await worker.server.drain(30)
        with pytest.raises(EngineUnavailable, match="shutting down"):
            await test
        with pytest.raises(EngineUnavailable, match="shutting down"):
            await client.verify("acme", "d2")
        assert worker.tests_begun.empty()


async def test_a_gateway_that_leaves_ends_its_tests(tmp_path: Path) -> None:
    async with worker_and_client(tmp_path) as (worker, client):
        test = asyncio.create_task(client.verify("acme", "d1"))
        await worker.tests_begun.get()
        await client.close()
        with pytest.raises(EngineUnavailable, match="went away"):
            await test
        async with asyncio.timeout(30):
            await worker.test_ended.wait()


async def test_a_test_that_nobody_waits_for_any_more_ends_and_others_go_on(tmp_path: Path) -> None:
    async with worker_and_client(tmp_path) as (worker, client):
        test = asyncio.create_task(client.verify("acme", "d1"))
        await worker.tests_begun.get()
        test.cancel()
        with pytest.raises(asyncio.CancelledError):
            await test
        async with asyncio.timeout(30):
            await worker.test_ended.wait()
        assert await client.metrics() != ""
