"""Pure ASGI middleware; Starlette's BaseHTTPMiddleware hides disconnects and triples the cost."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from time import monotonic

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loraplex.platform.error_replies import Headers, log_failure
from loraplex.platform.errors import BodyTimeout, BodyTooLarge
from loraplex.platform.log import REQUEST_ID, AccessLine
from loraplex.platform.problems import reply_for
from loraplex.tenants.ids import Entropy, new_id

_access_log = logging.getLogger("loraplex.access")

CLIENT_CLOSED = 499
"""Status in the access log where the client left before there was one."""


_PROBES = ("/livez", "/readyz", "/health", "/startupz", "/metrics")
"""Asked every few seconds, so their lines would hide the others."""


class RequestContext:
    """Outermost: gives each request its id, answers all errors, and writes the access log.

    It leaves two things in the scope: `loraplex.headers`, to which a route adds what any answer
    tells from then on, an error's too; and the server's own `send`, for streams: nothing between it
    and a route looks at more than how a response starts, and each token would pay for all of that.
    """

    def __init__(self, app: ASGIApp, now: Callable[[], datetime], entropy: Entropy) -> None:
        self._app = app
        self._now = now
        self._entropy = entropy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of the server."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        line = AccessLine(new_id("req", self._now(), self._entropy), monotonic())
        scope["loraplex.line"] = line
        scope["loraplex.send"] = send
        headers = scope["loraplex.headers"] = [(b"x-request-id", line.request_id.encode())]
        token = REQUEST_ID.set(line.request_id)
        tagged = _TaggedSend(send, headers)
        try:
            await self._app(scope, receive, tagged)
        except Exception as error:
            log_failure(error)
            if tagged.status is not None:
                raise
            await _answer_error(error, scope, tagged)
        finally:
            _log_access(scope, line, tagged.status)
            REQUEST_ID.reset(token)


class _TaggedSend:
    """Adds headers to the response, and notes its status."""

    def __init__(self, send: Send, headers: Headers) -> None:
        self._send = send
        self._headers = headers
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], *self._headers]
        await self._send(message)


@dataclass(frozen=True, slots=True)
class BodyBounds:
    """How large a body may be, and how long it may take to arrive."""

    max_bytes: int
    timeout_s: float


class BodyLimit:
    """Bounds the bodies of requests; those of uploads by bounds of their own."""

    def __init__(self, app: ASGIApp, bounds: BodyBounds, upload_bounds: BodyBounds) -> None:
        self._app = app
        self._bounds = bounds
        self._upload_bounds = upload_bounds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of the server. Raises BodyTooLarge before a byte is read."""
        if scope["type"] == "http":
            bounds = self._upload_bounds if _is_upload(scope) else self._bounds
            declared = dict(scope["headers"]).get(b"content-length", b"0")
            if declared.isdigit() and int(declared) > bounds.max_bytes:
                raise BodyTooLarge(bounds.max_bytes)
            receive = _BoundedReceive(receive, bounds)
        await self._app(scope, receive, send)


def _is_upload(scope: Scope) -> bool:
    """Whoever adds a route with such a path must not keep its body in memory."""
    method, path = scope["method"], scope["path"]
    return bool(
        (method == "POST" and path.endswith("/adapters"))
        or (method == "PATCH" and path.startswith("/v1/adapters/uploads/"))
    )


class _BoundedReceive:
    """Raises BodyTooLarge or BodyTimeout while a body comes in; has no say after its end."""

    def __init__(self, receive: Receive, bounds: BodyBounds) -> None:
        self._receive = receive
        self._bounds = bounds
        self._deadline_s: float | None = None
        self._num_bytes = 0
        self._whole = False

    async def __call__(self) -> Message:
        if self._whole:
            return await self._receive()
        message = await self._receive_in_time()
        self._num_bytes += len(message.get("body", b""))
        if self._num_bytes > self._bounds.max_bytes:
            raise BodyTooLarge(self._bounds.max_bytes)
        self._whole = not message.get("more_body", False)
        return message

    async def _receive_in_time(self) -> Message:
        if self._deadline_s is None:
            self._deadline_s = asyncio.get_running_loop().time() + self._bounds.timeout_s
        try:
            async with asyncio.timeout_at(self._deadline_s):
                return await self._receive()
        except TimeoutError:
            raise BodyTimeout(self._bounds.timeout_s) from None


async def _answer_error(error: Exception, scope: Scope, send: Send) -> None:
    reply = reply_for(error, scope)
    length = (b"content-length", str(len(reply.body)).encode())
    headers = [*reply.headers, length]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def _log_access(scope: Scope, line: AccessLine, status: int | None) -> None:
    """The path is the route's template: a path that a client made up is not for logs."""
    fields = {
        "method": scope["method"],
        "path": _template(scope),
        "status": CLIENT_CLOSED if status is None else status,
        "duration_ms": round((monotonic() - line.started_s) * 1000, 3),
    }
    level = logging.DEBUG if fields["path"] in _PROBES else logging.INFO
    _access_log.log(level, "request", extra={"fields": fields | line.fields})


def _template(scope: Scope) -> str:
    """A route of an included router knows its own end of the path; where it was included, the whole
    is in the context that FastAPI keeps of the route that it chose."""
    chosen = scope.get("fastapi", {}).get("effective_route_context") or scope.get("route")
    return str(getattr(chosen, "path", "unmatched"))
