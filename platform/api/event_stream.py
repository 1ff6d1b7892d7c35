"""An SSE response that starts late, stays alive, and notices clients that are gone or stalled."""

import asyncio
from typing import NoReturn

from starlette.types import Send

from loraplex.platform.api.formats import KEEPALIVE
from loraplex.platform.errors import ClientStalled

_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class EventStream:
    """Writes events. The status goes out with the first write, so that errors before it are real
    HTTP errors; after `keepalive_s` without an event it goes out with a comment.

    Events are written by one task, comments by another: neither writes while the other does.
    """

    def __init__(self, send: Send, send_body: Send, keepalive_s: float) -> None:
        """`send` takes the response's start, `send_body` all that follows."""
        self._send = send
        self._send_body = send_body
        self._keepalive_s = keepalive_s
        self._now_s = asyncio.get_running_loop().time
        self._begun_s = self._now_s()
        """When the last write began."""
        self._is_writing = False
        """Events. Cheaper than a lock, whose price each token would pay."""
        self._commenting = asyncio.Lock()
        self.started = False

    async def write(self, events: bytes) -> None:
        """Send events; waits while the client's buffers are full."""
        await self._write_events(events, more=True)

    async def end(self, events: bytes) -> None:
        """Send the last events and end the response."""
        await self._write_events(events, more=False)

    async def keep_alive(self) -> NoReturn:
        """Send a comment after each pause, for ever. Raises ClientStalled when a write has waited
        for the client through a whole pause."""
        while True:
            pause_s = self._begun_s + self._keepalive_s - self._now_s()
            if pause_s > 0:
                await asyncio.sleep(pause_s)
            elif self._is_writing:
                raise ClientStalled(self._keepalive_s)
            else:
                await self._write_comment()

    async def _write_comment(self) -> None:
        try:
            async with asyncio.timeout(self._keepalive_s), self._commenting:
                await self._write(KEEPALIVE, more=True)
        except TimeoutError:
            raise ClientStalled(self._keepalive_s) from None

    async def _write_events(self, events: bytes, *, more: bool) -> None:
        if self._commenting.locked():
            async with self._commenting:
                pass  # no other comment can begin before the events do
        self._is_writing = True
        await self._write(events, more=more)
        self._is_writing = False

    async def _write(self, events: bytes, *, more: bool) -> None:
        self._begun_s = self._now_s()
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._send_body({"type": "http.response.body", "body": events, "more_body": more})
