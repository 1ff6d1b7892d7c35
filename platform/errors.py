"""Errors of the gateway, and the one table from an error's class to what the client is told.

PlatformError
├── InvalidRequest          a field is wrong; `param` names it
├── ContextLengthExceeded   prompt and output do not fit into the model's context
├── KeyMissing              no bearer key came with the request
├── AdminKeyNeeded          a tenant's key came where only an operator's opens
├── BodyTooLarge, BodyTimeout
├── ClientGone              the client left; nobody reads an answer
├── ClientStalled           the client stopped to read its stream
├── LedgerUnavailable       usage cannot be written, so nothing that would be charged may run
├── TooManyUploads          as many uploads run as may
├── UploadOffsetMismatch    bytes of an upload do not follow those that are there
├── SourceUnavailable       where adapters are imported from does not answer
├── StorageUnavailable      the gateway's disk does not take an upload
├── AdapterDeleted          the version that the request ran on was deleted by force
├── EngineStopped           the worker ended the request before it was complete
└── TokenizerUnsupported    user text could not be told from the model's special tokens
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from sqlalchemy import exc as database_exc
from starlette.exceptions import HTTPException

from loraplex.adapters import errors as adapters
from loraplex.adapters.registry import errors as registry
from loraplex.engine import errors as engine
from loraplex.tenants import errors as tenants

_log = logging.getLogger(__name__)

Headers = list[tuple[bytes, bytes]]
Pairs = tuple[tuple[str, str], ...]


class PlatformError(Exception):
    """Root of all errors that the gateway raises itself; messages never hold keys or prompts."""


class InvalidRequest(PlatformError):
    """The request cannot be served as it is; `param` is the path of the offending field."""

    def __init__(self, message: str, param: str | None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ContextLengthExceeded(PlatformError):
    """Prompt plus output exceed the model's context; the message has the numbers."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class KeyMissing(PlatformError):
    """The request has no `Authorization: Bearer` header."""

    def __init__(self) -> None:
        super().__init__("No API key was sent; send it as the header 'Authorization: Bearer KEY'.")


class AdminKeyNeeded(PlatformError):
    """A tenant's key came to a route of the operator's."""

    def __init__(self) -> None:
        super().__init__("This route needs an admin key (lpxadm_…), not a tenant's key.")


class RequestNotFound(PlatformError):
    """An operator asked for a request that is neither open nor among those that ended lately."""

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"No request {request_id!r} is open here or among the last that ended; the ledger has "
            "those before."
        )


class BodyTooLarge(PlatformError):
    """The body is larger than the gateway takes, or than `message` says."""

    def __init__(self, max_bytes: int, message: str | None = None) -> None:
        super().__init__(
            message or f"The request body is larger than {max_bytes} bytes; send less."
        )


class BodyTimeout(PlatformError):
    """The body did not arrive in time."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"The request body did not arrive within {timeout_s:g} s; send it again.")


class ClientGone(PlatformError):
    """The client closed its connection before the answer was complete."""

    def __init__(self) -> None:
        super().__init__("The client closed the connection.")


class ClientStalled(PlatformError):
    """The client has not read its stream for so long that its request was ended."""

    def __init__(self, pause_s: float) -> None:
        super().__init__(f"The client did not read its stream for {pause_s:g} s.")


class LedgerUnavailable(PlatformError):
    """Usage waits to be written; what would add to it is not admitted."""

    def __init__(self) -> None:
        super().__init__("The usage ledger cannot be written.")


class StorageUnavailable(PlatformError):
    """The gateway's disk is full or refuses to be written; the message is the system's reason."""


class TooManyUploads(PlatformError):
    """Another upload may start when one has ended; the message says whose."""

    retry_after_s = 5.0


class UploadOffsetMismatch(PlatformError):
    """The bytes sent do not begin where the file ends; `offset` is where, as a header tells too."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(f"{message} The file has {offset} bytes.")
        self.offset = offset


class SourceUnavailable(PlatformError):
    """A source of adapters cannot be read; the message has its reason."""


class AdapterDeleted(PlatformError):
    """The version that the request ran on was deleted by force, with its requests."""

    def __init__(self, model: str) -> None:
        super().__init__(f"{model} was deleted by force while the request ran on it.")


class EngineStopped(PlatformError):
    """The worker ended the request early, because it is being stopped."""

    def __init__(self) -> None:
        super().__init__("The worker was stopped before the answer was complete; try again.")


class TokenizerUnsupported(PlatformError):
    """The model's special tokens cannot be told from text that a user typed."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How a class of errors is told to clients."""

    status: int
    type: str
    code: str | None = None
    """None takes the error's own `code`."""
    message: str | None = None
    """None tells the error's own message; errors of our own making tell a fixed one."""
    headers: Pairs = ()


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error as the client gets it."""

    status: int
    body: bytes
    """JSON."""
    headers: Headers


@dataclass(frozen=True, slots=True)
class Told:
    """What a client is told of an error, in whatever form."""

    status: int
    type: str
    code: str
    message: str
    param: str | None
    headers: Pairs
    problems: tuple[adapters.Problem, ...] = ()
    """Each reason, where there may be several."""


_REQUEST, _OUTAGE, _SERVER = "invalid_request_error", "service_unavailable_error", "server_error"
_NO_RETRY = ("x-should-retry", "false")
_INTERNAL = Rule(
    500,
    _SERVER,
    "internal_error",
    "The server failed on this request. Quote its x-request-id to the operator.",
)
_SOON, _LATER = (("retry-after", "1"),), (("retry-after", "60"),)


def _refused_key(code: str) -> Rule:
    return Rule(401, _REQUEST, code, headers=(("www-authenticate", "Bearer"),))


def _conflict(code: str) -> Rule:
    """What trying again does not change."""
    return Rule(409, "conflict_error", code, headers=(_NO_RETRY,))


def _outage(code: str, message: str | None = None, wait: Pairs = _SOON) -> Rule:
    return Rule(503, _OUTAGE, code, message, headers=wait)


def _database_down() -> Rule:
    return _outage("database_unavailable", "The database does not answer; retry.")


RULES: Mapping[type[Exception], Rule] = {
    Exception: _INTERNAL,
    # The gateway's own.
    InvalidRequest: Rule(400, _REQUEST),
    ContextLengthExceeded: Rule(400, _REQUEST, "context_length_exceeded"),
    KeyMissing: _refused_key("invalid_api_key"),
    AdminKeyNeeded: Rule(403, "permission_error", "admin_key_required"),
    RequestNotFound: Rule(404, _REQUEST, "request_not_found"),
    BodyTooLarge: Rule(413, _REQUEST, "request_too_large"),
    BodyTimeout: Rule(408, _REQUEST, "request_timeout", headers=(("connection", "close"),)),
    ClientGone: Rule(499, _REQUEST, "client_closed_request"),
    ClientStalled: Rule(499, _REQUEST, "slow_client"),
    LedgerUnavailable: _database_down(),
    StorageUnavailable: _outage(
        "storage_unavailable", "The adapter cannot be stored now; retry later.", _LATER
    ),
    TooManyUploads: Rule(429, "rate_limit_error", "too_many_uploads"),
    UploadOffsetMismatch: _conflict("upload_offset_mismatch"),
    SourceUnavailable: _outage("source_unavailable", wait=_LATER),
    AdapterDeleted: _conflict("adapter_deleted"),
    EngineStopped: Rule(503, _OUTAGE, "engine_unavailable", headers=_SOON),
    TokenizerUnsupported: _INTERNAL,
    # Tenants, keys, quotas.
    tenants.TenantsError: _INTERNAL,
    tenants.DatabaseError: _database_down(),
    tenants.NameInvalid: Rule(400, _REQUEST, "invalid_value"),
    tenants.ValueRefused: Rule(400, _REQUEST, "invalid_value"),
    tenants.TenantExists: Rule(409, "conflict_error", "tenant_exists", headers=(_NO_RETRY,)),
    tenants.TenantNotFound: Rule(404, _REQUEST, "tenant_not_found"),
    tenants.KeyNotFound: Rule(404, _REQUEST, "key_not_found"),
    tenants.KeyRefused: _refused_key("invalid_api_key"),
    tenants.KeyRevoked: _refused_key("key_revoked"),
    tenants.KeyExpired: _refused_key("key_expired"),
    tenants.TenantSuspended: Rule(403, "permission_error", "tenant_suspended"),
    tenants.QuotaExceeded: Rule(429, "rate_limit_error", "rate_limit_exceeded"),
    tenants.QuotaBackendUnavailable: _outage(
        "quota_backend_unavailable", "The store of quotas does not answer; retry."
    ),
    tenants.RequestExceedsLimit: Rule(400, _REQUEST, "request_exceeds_limit"),
    tenants.IdempotencyInProgress: Rule(409, "conflict_error", "idempotency_in_progress"),
    tenants.IdempotencyKeyReused: Rule(422, _REQUEST, "idempotency_key_reuse"),
    database_exc.OperationalError: _database_down(),
    database_exc.InterfaceError: _database_down(),
    database_exc.TimeoutError: _database_down(),
    # Adapters: only an upload is the client's.
    adapters.AdapterError: _INTERNAL,
    adapters.CheckpointInvalid: Rule(400, _REQUEST, "invalid_adapter"),
    registry.RegistryError: _INTERNAL,
    registry.ModelNotFound: Rule(404, _REQUEST, "model_not_found"),
    registry.UploadNotFound: Rule(404, _REQUEST, "upload_not_found"),
    registry.UploadConflict: _conflict("upload_conflict"),
    registry.VersionConflict: _conflict("version_conflict"),
    registry.VersionInUse: _conflict("version_in_use"),
    registry.VersionNotReady: _conflict("version_not_ready"),
    registry.BytesLeaving: _outage("storage_unavailable", wait=_LATER),
    registry.AliasMoved: Rule(412, "conflict_error", "alias_moved", headers=(_NO_RETRY,)),
    registry.NothingToMoveTo: _conflict("nothing_to_move_to"),
    registry.TooManyAliases: _conflict("too_many_aliases"),
    registry.AdapterTooLarge: Rule(400, _REQUEST, "adapter_too_large"),
    registry.StorageLimitReached: _conflict("storage_limit_reached"),
    registry.PinLimitReached: _conflict("pin_limit_reached"),
    # The engine.
    engine.EngineError: _INTERNAL,
    engine.RequestRefused: Rule(400, _REQUEST, "invalid_value"),
    engine.AdapterOverCap: Rule(400, _REQUEST, "adapter_too_large"),
    engine.EngineOverloaded: Rule(503, _OUTAGE, "server_is_overloaded"),
    engine.DeadlineUnreachable: Rule(503, _OUTAGE, "deadline_unreachable"),
    engine.EngineUnavailable: Rule(503, _OUTAGE, "engine_unavailable", headers=_SOON),
    engine.RequestFailed: Rule(500, _SERVER),
    engine.AdapterUnfit: Rule(409, "conflict_error", "adapter_mismatch", headers=(_NO_RETRY,)),
}
"""An error is told by the rule of the nearest of its classes."""


def rule_for(error: type[BaseException]) -> Rule:
    """The rule of an error's class."""
    return next((RULES[base] for base in error.__mro__ if base in RULES), _INTERNAL)


def describe(error: BaseException) -> ErrorReply:
    """What a client is told of an error: status, body in OpenAI's form, headers."""
    told = tell(error)
    fields: dict[str, object] = {
        "message": told.message,
        "type": told.type,
        "param": told.param,
        "code": told.code,
    }
    fields |= adapters.told(told.problems)
    body = msgspec.json.encode({"error": fields})
    return ErrorReply(told.status, body, encoded(told.headers, "application/json"))


def tell(error: BaseException) -> Told:
    """What a client is told of an error."""
    if isinstance(error, HTTPException):
        return _tell_route(error)
    rule = rule_for(type(error))
    return Told(
        status=rule.status,
        type=rule.type,
        code=_code(error, rule),
        message=rule.message or str(error),
        param=_param(error),
        headers=(*rule.headers, *_wait_headers(error)),
        problems=error.problems if isinstance(error, adapters.CheckpointInvalid) else (),
    )


def encoded(headers: Pairs, content_type: str) -> Headers:
    """Headers as ASGI has them."""
    pairs = (("content-type", content_type), *headers)
    return [(name.encode(), value.encode()) for name, value in pairs]


def error_event(error: BaseException) -> bytes:
    """The last event of a stream that failed after its first byte."""
    return b"data: " + describe(error).body + b"\n\n"


def log_failure(error: BaseException) -> None:
    """Log what a client was told about the server: outages in a line, the rest with a trace."""
    status = describe(error).status
    if status == 503:
        _log.warning("%s: %s", type(error).__name__, error)
    elif status >= 500:
        _log.error("the request failed", exc_info=error)


def _tell_route(error: HTTPException) -> Told:
    """Unknown routes and methods, which the router reports."""
    codes = {404: "route_not_found", 405: "method_not_allowed"}
    messages = {
        404: "There is no such route here; GET /openapi.json lists those there are.",
        405: f"This route takes {(error.headers or {}).get('allow', 'another method')} alone.",
    }
    return Told(
        status=error.status_code,
        type=_REQUEST,
        code=codes.get(error.status_code, "http_error"),
        message=messages.get(error.status_code, str(error.detail)),
        param=None,
        headers=tuple((error.headers or {}).items()),
    )


def _param(error: BaseException) -> str | None:
    return getattr(error, "param", None) or getattr(error, "field", None)


def _code(error: BaseException, rule: Rule) -> str:
    if isinstance(error, tenants.QuotaExceeded) and error.dimension == "concurrency":
        return "concurrency_limit_exceeded"
    return rule.code or str(getattr(error, "code", "internal_error"))


def _wait_headers(error: BaseException) -> Pairs:
    """Clients wait for `retry-after-ms` if they know it, else for `Retry-After` in seconds."""
    if isinstance(error, UploadOffsetMismatch):
        return (("upload-offset", str(error.offset)),)
    wait_s = getattr(error, "retry_after_s", None)
    if wait_s is None:
        return (_NO_RETRY,) if isinstance(error, engine.DeadlineUnreachable) else ()
    return (
        ("retry-after", str(max(1, math.ceil(wait_s)))),
        ("retry-after-ms", str(max(1, math.ceil(wait_s * 1000)))),
    )
