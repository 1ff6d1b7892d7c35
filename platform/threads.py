"""Work that blocks, in threads that the end of the process does not wait for."""

import asyncio
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

CANCEL_WAIT_S = 2.0


async def in_thread(work: Callable[[], T]) -> T:
    """Do what blocks. If the caller is cancelled meanwhile, the work gets CANCEL_WAIT_S to come to
    its end first, so that nothing is written behind the back of whoever tidies up; what takes
    longer ends with the process. (asyncio's own threads would keep the process alive.)"""
    loop = asyncio.get_running_loop()
    done: Future[T] = loop.create_future()
    done.add_done_callback(_look)
    Thread(target=copy_context().run, args=(_run, work, done, loop), daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait([done], timeout=CANCEL_WAIT_S)
        raise


def _run(work: Callable[[], T], done: "Future[T]", loop: AbstractEventLoop) -> None:
    try:
        result = work()
    except Exception as error:  # noqa: BLE001  told to whoever waits
        _tell(loop, done.set_exception, error)
    else:
        _tell(loop, done.set_result, result)


def _tell(loop: AbstractEventLoop, tell: Callable[[T], None], what: T) -> None:
    with suppress(RuntimeError):  # the loop is closed, and nobody waits
        loop.call_soon_threadsafe(tell, what)


def _look(done: "Future[T]") -> None:
    """Whoever was cancelled does not ask what came of it, and asyncio would log that."""
    if not done.cancelled():
        done.exception()
