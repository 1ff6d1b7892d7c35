"""An SSE response that starts late, stays alive, and notices clients that are gone or stalled."""

import asyncio
from typing import NoReturn

from starlette.types import Message, Send

from loraplex.platform.api.formats import KEEPALIVE
from loraplex.platform.errors import ClientStalled, Headers

_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class EventStream:
    """Writes events. The status goes out with the first write, so that errors before it are real
    HTTP errors; after `keepalive_s` without an event it goes out with a comment."""

    def __init__(self, send: Send, headers: Headers, keepalive_s: float) -> None:
        self._send = send
        self._headers = headers
        self._keepalive_s = keepalive_s
        self._writing = asyncio.Lock()
        self._touched_s = asyncio.get_running_loop().time()
        """When a write last began or ended."""
        self.started = False

    async def write(self, events: bytes) -> None:
        """Send events; waits while the client's buffers are full."""
        await self._write(events, more=True)

    async def end(self, events: bytes) -> None:
        """Send the last events and end the response."""
        await self._write(events, more=False)

    async def keep_alive(self) -> NoReturn:
        """Send a comment after each pause, for ever. Raises ClientStalled when a write has waited
        for the client through a whole pause."""
        while True:
            pause_s = self._touched_s + self._keepalive_s - asyncio.get_running_loop().time()
            if pause_s > 0:
                await asyncio.sleep(pause_s)
            elif self._writing.locked():
                raise ClientStalled(self._keepalive_s)
            else:
                await self._write_comment()

    async def _write_comment(self) -> None:
        try:
            async with asyncio.timeout(self._keepalive_s):
                await self.write(KEEPALIVE)
        except TimeoutError:
            raise ClientStalled(self._keepalive_s) from None

    async def _write(self, events: bytes, *, more: bool) -> None:
        async with self._writing:
            if not self.started:
                self.started = True
                headers = [*_HEADERS, *self._headers]
                await self._put({"type": "http.response.start", "status": 200, "headers": headers})
            await self._put({"type": "http.response.body", "body": events, "more_body": more})

    async def _put(self, message: Message) -> None:
        loop = asyncio.get_running_loop()
        self._touched_s = loop.time()
        await self._send(message)
        self._touched_s = loop.time()
