"""Why a request waits, asked over the stream."""

import asyncio
from contextlib import aclosing
from pathlib import Path

from tests.engine import build
from tests.engine.simulated_worker import running, socket_path

from loraplex.engine.client import Security, StreamClient
from loraplex.engine.frames import UnixAddress


async def test_an_open_request_is_explained_to_its_gateway_alone(tmp_path: Path) -> None:
    address = UnixAddress(socket_path(tmp_path))
    client, other = (StreamClient(address, Security(), 1000) for _ in range(2))
    async with running(address) as worker, asyncio.timeout(30):
        worker.runner.open()
        for each in (client, other):
            each.start()
            await each.wait_connected()
        async with aclosing(client.generate(build.submit("a", max_tokens=4000))) as stream:
            await anext(stream)
            explained = await client.why("a")
            assert await other.why("a") is None
        assert explained is not None
        assert (explained.state, explained.waits_for) == ("running", None)
        for each in (client, other):
            await each.close()
