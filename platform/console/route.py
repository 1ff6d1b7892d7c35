"""What every route of the console does: headers that protect, and pages for errors."""

import logging
from collections.abc import Callable, Coroutine
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from loraplex.platform.console.errors import CrossSite, FormRefused, SignInNeeded
from loraplex.platform.console.pages import render
from loraplex.platform.error_replies import log_failure, tell
from loraplex.platform.errors import ClientGone
from loraplex.platform.log import AccessLine

_log = logging.getLogger(__name__)

SIGN_IN = "/console/sign-in"
CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
HEADERS = MappingProxyType(
    {
        "content-security-policy": CONTENT_POLICY,
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        # `no-referrer` would make browsers send `Origin: null` with our own forms.
        "referrer-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
    }
)
_TITLES = MappingProxyType(
    {
        400: "That could not be done",
        403: "That was refused",
        404: "There is nothing here",
        409: "That could not be done",
        413: "That is too large",
        429: "Too many attempts",
        503: "Something is not available",
    }
)

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class ConsoleRoute(APIRoute):
    """A route whose errors are pages."""

    def get_route_handler(self) -> Handler:
        """Wrap the route's own handler."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            response = await _answer(handler, request)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            response.headers.setdefault("cache-control", "no-store")
            return response

        return handle


async def _answer(handler: Handler, request: Request) -> Response:
    try:
        return await handler(request)
    except SignInNeeded:
        return _to_sign_in(request)
    except ClientGone:
        raise
    except Exception as error:  # noqa: BLE001  whatever it is, people get a page
        if _told(error)[0] >= 500:
            log_failure(error)
        return _error_page(request, error)


def _to_sign_in(request: Request) -> Response:
    """Pages lead to the sign-in page and back; scripts are told by the status."""
    mode = request.headers.get("sec-fetch-mode", "navigate")
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    target = f"{SIGN_IN}?next={quote(path, safe='/')}" if request.method == "GET" else SIGN_IN
    if mode != "navigate":
        return Response(status_code=401, headers={"hx-redirect": SIGN_IN})
    return RedirectResponse(target, 303)


def _error_page(request: Request, error: Exception) -> Response:
    status, message = _told(error)
    return render(
        request,
        "error.html",
        status,
        title=_TITLES.get(status, "The server failed"),
        message=message,
        request_id=AccessLine.of(request.scope).request_id if status >= 500 else None,
    )


def _told(error: Exception) -> tuple[int, str]:
    """The status and the message of an error."""
    match error:
        case HTTPException(status_code=status):
            return status, "The address may be mistyped, or what it named is gone."
        case RequestValidationError():
            return 400, "The address has a part that cannot be read; it may be mistyped."
        case CrossSite():
            return 403, str(error)
        case FormRefused():
            return 400, str(error)
        case _:
            told = tell(error)
            return told.status, told.message
