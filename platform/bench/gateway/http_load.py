"""Requests over HTTP, made as cheaply as they can be: the machine is the gateway's."""

import asyncio
import random
from asyncio import AbstractEventLoop, Future, Transport
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

from loraplex.platform.bench.errors import BenchFailed

_TAIL_BYTES = 2048
"""Of an answer, what is kept: its end tells usage, and an error is short."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where requests go, and whose they are."""

    url: str
    key: str

    def request(self, body: bytes, program: str) -> bytes:
        """A POST of a chat; `program` is the header's."""
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {urlsplit(self.url).netloc}\r\n"
            f"authorization: Bearer {self.key}\r\nx-loraplex-program: {program}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


@dataclass(slots=True)
class Answer:
    """What came of a request; times are the event loop's."""

    status: int = 0
    first_byte_s: float = 0.0
    tail: bytes = b""

    def check(self) -> None:
        """Raise BenchFailed unless it is whole."""
        if self.status != 200 or not self.tail.endswith(b"data: [DONE]\n\n"):
            text = self.tail[-300:].decode(errors="replace")
            raise BenchFailed(f"the gateway answered {self.status}: {text}")


class Connection(asyncio.Protocol):
    """One connection that carries one request at a time."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: Transport | None = None
        self._answer = Answer()
        self._begun: Future[None] | None = None
        self._ended: Future[Answer] | None = None
        self._parser = httptools.HttpResponseParser(self)

    async def send(self, request: bytes) -> Answer:
        """Send a request and read its answer to the end. Raises BenchFailed."""
        assert self._transport is not None
        self._answer = Answer()
        self._begun, self._ended = self._loop.create_future(), self._loop.create_future()
        self._transport.write(request)
        answer = await self._ended
        answer.check()
        return answer

    async def begun(self) -> None:
        """Return when the answer to what was sent has begun. Raises BenchFailed."""
        assert self._begun is not None
        await self._begun

    def close(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio's protocol; so below."""
        self._transport = cast(Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Read some of an answer."""
        if not self._answer.first_byte_s:
            self._answer.first_byte_s = self._loop.time()
            if self._begun is not None and not self._begun.done():
                self._begun.set_result(None)
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        """An answer that is not whole fails."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(BenchFailed(f"the gateway closed a connection: {error}"))

    def on_body(self, body: bytes) -> None:
        """Of the parser; so below."""
        self._answer.tail = (self._answer.tail + body)[-_TAIL_BYTES:]

    def on_message_complete(self) -> None:
        """The answer is whole."""
        self._answer.status = self._parser.get_status_code()
        self._parser = httptools.HttpResponseParser(self)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(self._answer)


@asynccontextmanager
async def connections(server: Server, number: int) -> AsyncIterator[list[Connection]]:
    """So many open connections."""
    loop = asyncio.get_running_loop()
    parts = urlsplit(server.url)
    assert parts.hostname is not None
    assert parts.port is not None
    host, port = parts.hostname, parts.port
    opened: list[Connection] = []
    try:
        for _ in range(number):
            _, each = await loop.create_connection(lambda: Connection(loop), host, port)
            opened.append(each)
        yield opened
    finally:
        for each in opened:
            each.close()


async def send_each(
    opened: Sequence[Connection], requests: Sequence[bytes], when_begun: Callable[[], None]
) -> None:
    """A request on each connection, all at once; return when all answers have ended. `when_begun`
    is called when each has begun. Raises BenchFailed."""

    async def tell() -> None:
        for each in opened:
            await each.begun()
        when_begun()

    sent = [each.send(request) for each, request in zip(opened, requests, strict=True)]
    await _all([*sent, tell()])


async def send_by_turns(
    opened: Sequence[Connection], requests: Sequence[bytes], duration_s: float
) -> int:
    """Have a request open on each connection all the time. Return how many have ended."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + duration_s
    ended = 0

    async def go_on(each: Connection, start: int) -> None:
        nonlocal ended
        number = start
        while loop.time() < until_s:
            await each.send(requests[number % len(requests)])
            number, ended = number + 1, ended + 1

    await _all(go_on(each, start) for start, each in enumerate(opened))
    return ended


async def send_at_rate(
    opened: Sequence[Connection],
    requests: Sequence[bytes],
    rate_per_s: float,
    duration_s: float,
    seed: int,
) -> list[float]:
    """Send requests as they are due, whatever became of those before (Poisson).

    Returns the time from when each was due to its answer's first byte, in seconds: a request that
    found no free connection has waited for one.
    """
    draw = random.Random(seed)  # noqa: S311  arrivals, no secrets
    loop = asyncio.get_running_loop()
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for each in opened:
        free.put_nowait(each)
    waits: list[float] = []

    async def serve(number: int, due_s: float) -> None:
        await asyncio.sleep(due_s - loop.time())
        each = await free.get()
        answer = await each.send(requests[number % len(requests)])
        waits.append(answer.first_byte_s - due_s)
        free.put_nowait(each)

    start_s = loop.time()
    dues_s = []
    due_s = draw.expovariate(rate_per_s)
    while due_s < duration_s:
        dues_s.append(start_s + due_s)
        due_s += draw.expovariate(rate_per_s)
    await _all(serve(number, due_s) for number, due_s in enumerate(dues_s))
    return waits


async def _all(works: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Do all at once; the first that fails ends the others, and its error is raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
