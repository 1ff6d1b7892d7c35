"""Why a request waits, asked over the stream."""

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from pathlib import Path

from tests.engine import build
from tests.engine.simulated_worker import SimulatedWorker, running, socket_path

from loraplex.engine.client import Security, StreamClient
from loraplex.engine.frames import UnixAddress
from loraplex.engine.protocol import Explained


async def answered(
    worker: SimulatedWorker, question: Coroutine[None, None, Explained | None]
) -> Explained | None:
    """The answer, which comes with a step; the request must not end by itself meanwhile."""
    asking = asyncio.create_task(question)
    while not asking.done():
        worker.runner.steps.release(1)
        await worker.step_where(lambda _: True)
    return await asking


async def test_an_open_request_is_explained_to_its_gateway_alone(tmp_path: Path) -> None:
    address = UnixAddress(socket_path(tmp_path))
    client, other = (StreamClient(address, Security(), 1000) for _ in range(2))
    async with running(address) as worker, asyncio.timeout(30):
        worker.runner.steps.release(1)
        for each in (client, other):
            each.start()
            await each.wait_connected()
        async with aclosing(client.generate(build.submit("a", max_tokens=4000))) as stream:
            await anext(stream)
            explained = await answered(worker, client.why("a"))
            assert await answered(worker, other.why("a")) is None
        worker.runner.open()
        assert explained is not None
        assert (explained.state, explained.waits_for) == ("running", None)
        for each in (client, other):
            await each.close()
