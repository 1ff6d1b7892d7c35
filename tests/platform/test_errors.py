"""How errors are told: each class of each package has its place in one table."""

import asyncio
import importlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from secrets import token_bytes

import pytest
from tests.platform.conftest import NOW, PEPPER, Gateway, chat_body, error_of

from loraplex.adapters.errors import AdapterError
from loraplex.adapters.registry.errors import RegistryError
from loraplex.engine.errors import EngineError
from loraplex.platform.catalogue import Edition
from loraplex.platform.error_replies import RULES, describe, rule_for
from loraplex.platform.errors import PlatformError
from loraplex.tenants import api_keys, directory, key_changes
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.errors import (
    BudgetExhausted,
    QuotaExceeded,
    RequestExceedsLimit,
    TenantExists,
    TenantsError,
)
from loraplex.tenants.scoped_limits import Dimension, Scope, ScopedLimit

ROOTS = (AdapterError, EngineError, PlatformError, RegistryError, TenantsError)
NOT_FOR_CLIENTS = {
    # Answered by the console with pages of its own, never by the API.
    "ConsoleError",
    "CrossSite",
    "FormRefused",
    "SignInNeeded",
    # On the sign-in page.
    "SignInRefused",
    "OidcError",
    "IssuerUnavailable",
    "SignInFailed",
    # Startup of a process.
    "StartRefused",
    "MemoryTooSmall",
    "KernelsMissing",
    "TooFewCores",
    "AddressInUse",
    "StreamAddressInvalid",
    "JournalInUse",
    # In the worker at its start, and in the simulator.
    "CostModelInvalid",
    "ModelUnsupported",
    "SecretUnusable",
    # The operator's files.
    "AdapterMissing",
    "AdapterCorrupt",
    # In the worker, which tells the gateway: there it is AdapterUnfit.
    "AdapterMismatch",
    "PatternTimeout",
    "BaseUnreadable",
    "TensorFileInvalid",
    # Bugs of ours.
    "ResidencyViolation",
    "HoldConflict",
    "UsageConflict",
    "QuotaError",
}


def subclasses(root: type[Exception]) -> Iterator[type[Exception]]:
    for child in root.__subclasses__():
        if child.__module__.startswith("loraplex."):
            yield child
            yield from subclasses(child)


@pytest.mark.parametrize("root", ROOTS)
def test_each_error_has_a_rule_of_its_own_or_is_known_not_to_need_one(
    root: type[Exception],
) -> None:
    unmapped = {
        error.__name__
        for error in subclasses(root)
        if next(base for base in error.__mro__ if base in RULES) in {root, Exception}
    }
    assert unmapped <= NOT_FOR_CLIENTS


@pytest.mark.parametrize("root", ROOTS)
def test_what_is_not_for_clients_tells_them_nothing(root: type[Exception]) -> None:
    for error in subclasses(root):
        if error.__name__ in NOT_FOR_CLIENTS:
            assert rule_for(error).status == 500
            assert rule_for(error).message is not None


def test_statuses_and_codes_are_what_clients_decide_by() -> None:
    table = {error.__name__: (rule.status, rule.code) for error, rule in RULES.items()}
    assert table["KeyRefused"] == table["KeyMissing"] == (401, "invalid_api_key")
    assert table["KeyRevoked"] == (401, "key_revoked")
    assert table["KeyExpired"] == (401, "key_expired")
    assert table["TenantSuspended"] == (403, "tenant_suspended")
    assert table["ModelNotFound"] == (404, "model_not_found")
    assert table["BodyTooLarge"] == (413, "request_too_large")
    assert table["BodyTimeout"] == (408, "request_timeout")
    assert table["OperationalError"] == (503, "database_unavailable")


def test_rate_limits_say_when_to_come_back() -> None:
    limit = ScopedLimit("key", "key_1", "tokens_per_minute", 100, 100)
    reply = describe(QuotaExceeded(limit, 1.234))
    headers = dict(reply.headers)
    assert reply.status == 429
    assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (b"2", b"1234")
    assert headers[b"x-loraplex-limit-policy"] == b"key/tokens_per_minute"
    assert b"rate_limit_exceeded" in reply.body
    assert b"The key's limit of 100 tokens per minute is reached" in reply.body
    for dimension in ("concurrency", "enqueued_tokens"):
        full = QuotaExceeded(replace(limit, dimension=dimension), 1)
        assert b"concurrency_limit_exceeded" in describe(full).body


@pytest.mark.parametrize(
    ("scope", "dimension", "code"),
    [
        ("tenant", "cost_micros_per_month", "organization_spend_limit_exceeded"),
        ("project", "cost_micros_per_month", "project_spend_limit_exceeded"),
        ("key", "cost_micros_per_month", "key_spend_limit_exceeded"),
        ("adapter", "cost_micros_per_month", "adapter_spend_limit_exceeded"),
        ("project", "tokens_per_month", "token_budget_exhausted"),
    ],
)
def test_a_spent_budget_is_told_by_its_owner_and_not_for_retry_before_the_month_ends(
    scope: Scope, dimension: Dimension, code: str
) -> None:
    limit = ScopedLimit(scope, "x", dimension, 2_500_000, 2_500_000)
    reply = describe(BudgetExhausted(limit, datetime(2026, 11, 30, 23, 0, 1, tzinfo=UTC)))
    headers = dict(reply.headers)
    assert (reply.status, headers[b"x-should-retry"]) == (429, b"false")
    assert headers[b"retry-after"] == b"Mon, 30 Nov 2026 23:00:01 GMT"
    assert f'"type":"insufficient_quota","param":null,"code":"{code}"'.encode() in reply.body
    shown = "2500000 tokens" if dimension == "tokens_per_month" else "2.500000 of cost"
    assert f"limit of {shown} per month".encode() in reply.body


def test_what_can_never_fit_is_not_for_retry() -> None:
    limit = ScopedLimit("key", "k", "tokens_per_minute", 100, 100)
    reply = describe(RequestExceedsLimit(limit, 200))
    headers = dict(reply.headers)
    assert (reply.status, headers[b"x-should-retry"]) == (400, b"false")
    assert headers[b"x-loraplex-limit-policy"] == b"key/tokens_per_minute"


def test_permanent_conflicts_tell_the_client_not_to_retry() -> None:
    from_table = dict(describe(TenantExists("x")).headers)
    assert from_table[b"x-should-retry"] == b"false"


def test_unknown_errors_do_not_tell_their_message() -> None:
    reply = describe(RuntimeError("password=hunter2"))
    assert reply.status == 500
    assert b"hunter2" not in reply.body


async def key_like(gateway: Gateway, state: str) -> str:
    """A key in some state."""
    async with gateway.resources.database.session() as session:
        tenant = gateway.tenant
        if state == "suspended":
            tenant = await directory.create(session, "bad", NOW, token_bytes)
        expires_at = NOW if state == "expired" else None
        minted = await api_keys.mint(
            session, tenant, "k", PEPPER, NOW - timedelta(days=1), token_bytes, expires_at
        )
        if state == "revoked":
            await key_changes.revoke(session, Act(CLI, NOW), tenant.id, minted.key_id)
        if state == "suspended":
            await directory.suspend(session, Act(CLI, NOW), tenant.id)
    return minted.text


@pytest.mark.parametrize(
    ("state", "status", "code"),
    [
        ("revoked", 401, "key_revoked"),
        ("expired", 401, "key_expired"),
        ("suspended", 403, "tenant_suspended"),
    ],
)
async def test_keys_that_are_not_good_any_more_say_why(
    gateway: Gateway, state: str, status: int, code: str
) -> None:
    key = await key_like(gateway, state)
    for path in ("/v1/chat/completions", "/v1/completions"):
        response = await gateway.client.post(
            path, json=chat_body(), headers={"authorization": f"Bearer {key}"}
        )
        assert (response.status_code, error_of(response)["code"]) == (status, code)
        assert key not in response.text


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", "Basic abc", "Bearer lpx_nope"])
async def test_without_a_good_key_there_is_401_before_anything_else(
    gateway: Gateway, authorization: str
) -> None:
    response = await gateway.client.post(
        "/v1/chat/completions", content=b"{", headers={"authorization": authorization}
    )
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert error_of(response)["code"] == "invalid_api_key"
    assert "lpx_nope" not in response.text


async def test_more_requests_at_a_time_than_allowed_are_429(gateway: Gateway) -> None:
    _, key = await gateway.make_tenant("narrow", concurrency=1)
    headers = {"authorization": f"Bearer {key}"}
    gateway.engine.answer = None
    first = asyncio.create_task(
        gateway.client.post("/v1/chat/completions", json=chat_body(), headers=headers)
    )
    request_id = (await gateway.engine.submitted()).request_id
    second = await gateway.client.post("/v1/chat/completions", json=chat_body(), headers=headers)
    assert second.status_code == 429
    assert error_of(second)["code"] == "concurrency_limit_exceeded"
    assert error_of(second)["type"] == "rate_limit_error"
    assert "retry-after" in second.headers
    gateway.engine.finish(request_id)
    assert (await first).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing/here", 404, "route_not_found"),
        ("GET", "/v1/chat/completions/", 404, "route_not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
    ],
)
async def test_unknown_routes_and_methods_have_the_same_form(
    gateway: Gateway, method: str, path: str, status: int, code: str
) -> None:
    response = await gateway.client.request(method, path)
    assert (response.status_code, error_of(response)["code"]) == (status, code)
    assert response.headers["x-request-id"].startswith("req_")


async def test_no_worker_is_503_and_worth_a_retry(gateway: Gateway) -> None:
    gateway.engine.die()
    response = await gateway.chat()
    assert (response.status_code, error_of(response)["code"]) == (503, "engine_unavailable")
    assert response.headers["retry-after"] == "1"


async def test_a_database_that_is_away_is_503_never_401(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlalchemy_exc = importlib.import_module("sqlalchemy.exc")

    async def away(*_: object) -> None:
        raise sqlalchemy_exc.OperationalError("select", {}, Exception("no route to host"))

    monkeypatch.setattr(Edition, "key", away)
    response = await gateway.chat()
    assert (response.status_code, error_of(response)["code"]) == (503, "database_unavailable")
    assert "no route" not in response.text


async def test_a_bug_is_a_500_with_an_id_and_no_details(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("details")

    monkeypatch.setattr(Edition, "key", broken)
    response = await gateway.chat()
    assert (response.status_code, error_of(response)["code"]) == (500, "internal_error")
    assert "details" not in response.text
    assert response.headers["x-request-id"].startswith("req_")
