"""Errors in the form of RFC 9457, `application/problem+json`; the admin API tells them so."""

from http import HTTPStatus

import msgspec
from starlette.types import Scope

from loraplex.adapters import errors as refusals
from loraplex.platform.error_replies import ErrorReply, describe, encoded, tell
from loraplex.platform.log import AccessLine

ADMIN_PREFIX = "/admin/"


def reply_for(error: BaseException, scope: Scope) -> ErrorReply:
    """An error in the form that the route's clients read."""
    if not scope["path"].startswith(ADMIN_PREFIX):
        return describe(error)
    return problem(error, AccessLine.of(scope).request_id)


def problem(error: BaseException, request_id: str) -> ErrorReply:
    """The error as a problem; `code` and `param` are those of OpenAI's form."""
    told = tell(error)
    fields: dict[str, object] = {
        "type": f"urn:loraplex:error:{told.code}",
        "title": _title(told.status),
        "status": told.status,
        "detail": told.message,
        "instance": f"urn:loraplex:request:{request_id}",
        "code": told.code,
        "param": told.param,
    }
    fields |= refusals.told(told.problems)
    body = msgspec.json.encode(fields)
    return ErrorReply(told.status, body, encoded(told.headers, "application/problem+json"))


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Client Closed Request" if status == 499 else "Error"
