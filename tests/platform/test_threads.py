"""Threads that no end waits for."""

import asyncio
import json
import logging
import subprocess
import sys
from threading import Event

import pytest

from loraplex.platform import threads
from loraplex.platform.log import JsonFormatter
from loraplex.platform.threads import in_thread

STUCK = """
import asyncio, threading
from loraplex.platform import threads

threads.CANCEL_WAIT_S = 0.01

async def main():
    started = threading.Event()
    task = asyncio.create_task(
        threads.in_thread(lambda: (started.set(), threading.Event().wait()))
    )
    while not started.is_set():
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])

asyncio.run(main())
print("ended")
"""


def test_a_process_ends_though_work_of_a_cancelled_caller_does_not() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60, check=True
    )
    assert (ended.stdout, ended.stderr) == ("ended\n", "")


async def test_a_cancelled_caller_waits_for_work_that_ends_soon() -> None:
    started, go, ended = asyncio.Event(), Event(), Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(started.set)
        go.wait()
        ended.set()

    task = asyncio.create_task(in_thread(work))
    await started.wait()
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_results_and_errors_come_back() -> None:
    assert await in_thread(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)
    assert threads.CANCEL_WAIT_S > 0


def test_a_request_that_the_servers_end_cancels_is_one_line_without_a_trace() -> None:
    formatter = JsonFormatter()
    for error, is_told in ((asyncio.CancelledError(), False), (ValueError(), True)):
        record = logging.LogRecord(
            "uvicorn.error", logging.ERROR, "", 0, "x", (), (type(error), error, None)
        )
        assert ("exception" in json.loads(formatter.format(record))) == is_told
