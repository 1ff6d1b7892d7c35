"""The one table from an error's class to what the client is told, and how it is told."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import format_datetime

import msgspec
from sqlalchemy import exc as database_exc
from starlette.exceptions import HTTPException

from loraplex.adapters import errors as adapters
from loraplex.adapters.registry import errors as registry
from loraplex.engine import errors as engine
from loraplex.platform.errors import (
    AdapterDeleted,
    AdminKeyNeeded,
    BodyTimeout,
    BodyTooLarge,
    ClientGone,
    ClientStalled,
    ContextLengthExceeded,
    EngineStopped,
    InvalidRequest,
    KeyMissing,
    LedgerUnavailable,
    ModelNotAllowed,
    PriceMissing,
    RequestNotFound,
    SourceUnavailable,
    StorageUnavailable,
    TokenizerUnsupported,
    TooManyHints,
    TooManyUploads,
    UploadOffsetMismatch,
)
from loraplex.tenants import errors as tenants
from loraplex.tenants.key_text import without_secrets
from loraplex.tenants.scoped_limits import ScopedLimit

_log = logging.getLogger(__name__)

Headers = list[tuple[bytes, bytes]]
Pairs = tuple[tuple[str, str], ...]


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
    ModelNotAllowed: Rule(403, "permission_error", "model_not_allowed"),
    RequestNotFound: Rule(404, _REQUEST, "request_not_found"),
    BodyTooLarge: Rule(413, _REQUEST, "request_too_large"),
    BodyTimeout: Rule(408, _REQUEST, "request_timeout", headers=(("connection", "close"),)),
    ClientGone: Rule(499, _REQUEST, "client_closed_request"),
    ClientStalled: Rule(499, _REQUEST, "slow_client"),
    LedgerUnavailable: _database_down(),
    PriceMissing: _outage("price_missing", wait=_LATER),
    StorageUnavailable: _outage(
        "storage_unavailable", "The adapter cannot be stored now; retry later.", _LATER
    ),
    TooManyUploads: Rule(429, "rate_limit_error", "too_many_uploads"),
    TooManyHints: Rule(429, "rate_limit_error", "too_many_hints"),
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
    tenants.ExceedsParent: Rule(400, _REQUEST, "exceeds_parent"),
    tenants.PermissionMissing: Rule(403, "permission_error", "insufficient_scope"),
    tenants.SelfWidening: Rule(403, "permission_error", "own_key"),
    tenants.TenantExists: Rule(409, "conflict_error", "tenant_exists", headers=(_NO_RETRY,)),
    tenants.ProjectExists: _conflict("project_exists"),
    tenants.ProjectNotFound: Rule(404, _REQUEST, "project_not_found"),
    tenants.ProjectProtected: _conflict("project_protected"),
    tenants.KeyEnded: _conflict("key_revoked"),
    tenants.LimitNotFound: Rule(404, _REQUEST, "limit_not_found"),
    tenants.TenantNotFound: Rule(404, _REQUEST, "tenant_not_found"),
    tenants.KeyNotFound: Rule(404, _REQUEST, "key_not_found"),
    tenants.KeyRefused: _refused_key("invalid_api_key"),
    tenants.KeyRevoked: _refused_key("key_revoked"),
    tenants.KeyExpired: _refused_key("key_expired"),
    tenants.AddressRefused: Rule(403, "permission_error", "ip_not_allowed"),
    tenants.ProjectArchived: Rule(403, "permission_error", "project_archived"),
    tenants.TenantSuspended: Rule(403, "permission_error", "tenant_suspended"),
    tenants.PersonError: _INTERNAL,
    tenants.PersonExists: _conflict("person_exists"),
    tenants.PersonNotFound: Rule(404, _REQUEST, "person_not_found"),
    tenants.MembershipNotFound: Rule(404, _REQUEST, "membership_not_found"),
    tenants.LastOwner: _conflict("last_owner"),
    tenants.PasswordsBusy: Rule(503, _OUTAGE, "passwords_busy"),
    tenants.QuotaExceeded: Rule(429, "rate_limit_error", "rate_limit_exceeded"),
    tenants.BudgetExhausted: Rule(429, "insufficient_quota", headers=(_NO_RETRY,)),
    tenants.BudgetsUnknown: _outage(
        "quota_backend_unavailable", "What is left of the budgets is not known yet; retry."
    ),
    tenants.QuotaBackendUnavailable: _outage(
        "quota_backend_unavailable", "The store of quotas does not answer; retry."
    ),
    tenants.RequestExceedsLimit: Rule(400, _REQUEST, "request_exceeds_limit", headers=(_NO_RETRY,)),
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
    engine.JournalUnavailable: Rule(503, _OUTAGE, "journal_unavailable"),
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
        message=rule.message or without_secrets(str(error)),
        param=_param(error),
        headers=(*rule.headers, *_wait_headers(error), *_limit_headers(error)),
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
    param = getattr(error, "param", None) or getattr(error, "field", None)
    return None if param is None else without_secrets(str(param))


def _code(error: BaseException, rule: Rule) -> str:
    if isinstance(error, tenants.QuotaExceeded) and error.limit.kind == "gauge":
        return "concurrency_limit_exceeded"
    if isinstance(error, tenants.BudgetExhausted):
        return _budget_code(error.limit)
    return rule.code or str(getattr(error, "code", "internal_error"))


def _budget_code(limit: ScopedLimit) -> str:
    """Whose budget it is: codes of OpenAI's where it has one."""
    if limit.dimension == "tokens_per_month":
        return "token_budget_exhausted"
    owner = "organization" if limit.scope == "tenant" else limit.scope
    return f"{owner}_spend_limit_exceeded"


def _wait_headers(error: BaseException) -> Pairs:
    """Clients wait for `retry-after-ms` if they know it, else for `Retry-After` in seconds."""
    if isinstance(error, UploadOffsetMismatch):
        return (("upload-offset", str(error.offset)),)
    if isinstance(error, tenants.BudgetExhausted):
        return (("retry-after", format_datetime(error.resets_at, usegmt=True)),)
    wait_s = getattr(error, "retry_after_s", None)
    if wait_s is None:
        return (_NO_RETRY,) if isinstance(error, engine.DeadlineUnreachable) else ()
    return (
        ("retry-after", str(max(1, math.ceil(wait_s)))),
        ("retry-after-ms", str(max(1, math.ceil(wait_s * 1000)))),
    )


def _limit_headers(error: BaseException) -> Pairs:
    """Which limit it was."""
    limit = getattr(error, "limit", None)
    return (("x-loraplex-limit-policy", limit.name),) if isinstance(limit, ScopedLimit) else ()
