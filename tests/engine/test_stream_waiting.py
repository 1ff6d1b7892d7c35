"""What a gateway's end of the stream tells while no worker is there."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.simulated_worker import running

from loraplex.engine.client import StreamClient
from loraplex.engine.frames import Security, UnixAddress


class Told(logging.Handler):
    """Keeps what was logged, and tells that something was."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.some = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.some.set()


@pytest.fixture
def told() -> Iterator[Told]:
    log, handler = logging.getLogger("loraplex.engine.client"), Told()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.setLevel(logging.NOTSET)
    log.removeHandler(handler)


async def test_a_worker_that_is_still_to_come_is_waited_for_and_alarms_nobody(
    tmp_path: Path, told: Told
) -> None:
    address = UnixAddress(tmp_path / "w.sock")
    client = StreamClient(address, Security(), 1000)
    client.start()
    async with asyncio.timeout(30):
        await told.some.wait()
        async with running(address):
            await client.wait_connected()
            await client.close()
    (record,) = told.records
    assert record.levelno == logging.INFO
    assert record.getMessage() == f"waiting for the worker at {address}: nothing listens there"
