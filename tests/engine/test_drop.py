"""Adapters that nobody will ask for any more leave the worker, whoever still uses them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.engine import build
from tests.engine.simulated_worker import SimulatedWorker, first_token, running, socket_path
from tests.engine.test_stream import collect, connected

from loraplex.adapters.residency import State
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.client import StreamClient
from loraplex.engine.frames import UnixAddress

KEY = AdapterKey("t", "x")


@pytest.fixture
def address(tmp_path: Path) -> UnixAddress:
    return UnixAddress(socket_path(tmp_path))


@pytest.fixture
async def worker(address: UnixAddress) -> AsyncIterator[SimulatedWorker]:
    async with running(address) as worker:
        yield worker


async def test_an_unused_adapter_is_dropped_at_once(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    worker.runner.open()
    async with connected(address) as client:
        await collect(client, build.submit("a", adapter="x"))
        assert worker.residency.state(KEY) is State.RESIDENT
        client.drop("t", "x")
        await worker.step_where(lambda report: KEY in report.plan.evictions)
    assert worker.residency.state(KEY) is State.ABSENT
    assert worker.residency.held_bytes == 0
    assert KEY not in worker.transfers.resident


async def test_an_adapter_in_use_is_dropped_with_its_last_request(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    worker.runner.steps.release(1)
    async with connected(address) as client:
        stream = client.generate(build.submit("a", max_tokens=40, adapter="x"))
        await first_token(stream)
        client.drop("t", "x")
        rest = asyncio.create_task(_exhaust(stream))
        await worker.step_where(lambda report: not report.plan.evictions)
        worker.runner.open()
        evicting = await worker.step_where(lambda report: KEY in report.plan.evictions)
        await rest
    assert evicting.plan.num_requests == 0, "it ran to its end"
    assert worker.residency.held_bytes == 0


async def test_what_an_adapter_has_computed_is_found_no_more_once_it_is_dropped(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    worker.runner.open()
    async with connected(address) as client:
        assert await _num_cached(client, "a") == 0
        assert await _num_cached(client, "b") == 36
        client.drop("t", "x")
        assert await _num_cached(client, "c") == 0


async def test_another_tenants_use_of_the_same_bytes_stays(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    worker.runner.open()
    async with connected(address) as client:
        for tenant in ("t", "u"):
            await collect(client, build.submit(tenant, adapter="x", tenant=tenant))
        client.drop("t", "x")
        await worker.step_where(lambda report: KEY in report.plan.evictions)
    assert worker.residency.state(AdapterKey("u", "x")) is State.RESIDENT


async def test_an_adapter_that_is_asked_for_again_is_loaded_again(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    worker.runner.open()
    async with connected(address) as client:
        for request_id in ("a", "b"):
            client.drop("t", "x")
            tokens, _ = await collect(client, build.submit(request_id, adapter="x"))
            assert len(tokens) == 4


async def _exhaust(stream: AsyncIterator[object]) -> None:
    async for _ in stream:
        pass


async def _num_cached(client: StreamClient, request_id: str) -> int:
    prompt = tuple(range(40))
    _, finished = await collect(client, build.submit(request_id, prompt=prompt, adapter="x"))
    return finished.usage.cached_tokens
