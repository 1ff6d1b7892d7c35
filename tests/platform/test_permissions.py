"""Every route declares what it takes, and tells nobody anything of another tenant."""

import re
import secrets
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.platform.conftest import NOW, PEPPER, Gateway
from tests.platform.route_table import RouteEntry, route_table

from loraplex.tenants import (
    admin_keys,
    directory,
    key_changes,
    memberships,
    people,
    projects,
)
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.key_changes import NewKey
from loraplex.tenants.key_scopes import KeyScopes, of_platform
from loraplex.tenants.roles import PLATFORM_GRANTS, TENANT_GRANTS, Permission

OPEN = {"/livez", "/health", "/readyz", "/startupz", "/metrics", "/"}
"""Probes and metrics, for whoever can reach the address; and the way to the console."""
CONSOLE = "/console"
"""People sign in there; its pages are checked in tests/console."""
GRANTOR = of_platform(Act(CLI, NOW))


@dataclass(frozen=True)
class Called:
    """A route, and what it declares."""

    method: str
    path: str
    permission: Permission

    def url(self, names: dict[str, str]) -> str:
        return re.sub(r"{(\w+)(?::path)?}", lambda part: names.get(part[1], "absent"), self.path)


def api_routes(app: FastAPI) -> list[RouteEntry]:
    found = route_table(app)
    return [r for r in found if r.path not in OPEN and not r.path.startswith(CONSOLE)]


def called(app: FastAPI, prefix: str) -> list[Called]:
    return [
        Called(method, route.path, route.declared[0].permission)
        for route in api_routes(app)
        for method in sorted(route.methods)
        if route.path.startswith(prefix)
    ]


@dataclass(frozen=True)
class Other:
    """What another tenant has, by the names of the paths' parameters."""

    tenant: TenantRecord
    names: dict[str, str]


ABSENT = {
    "project": "prj_absent",
    "key_id": "absent-absent-abs",
    "name": "nothing",
    "number": "1",
    "alias": "nothing",
    "dimension": "concurrency",
    "upload_id": "upl_absent",
    "file": "adapter_config.json",
    "model": "nobody/nothing",
    "tenant": "tnt_absent",
    "request_id": "req_absent",
    "person_id": "psn_absent",
}


async def key_of(gateway: Gateway, tenant: TenantRecord, wanted: NewKey) -> tuple[str, str]:
    async with gateway.resources.database.session() as session:
        key = await key_changes.create(
            session, GRANTOR, tenant, wanted, PEPPER, secrets.token_bytes
        )
    return key.key_id, key.text


@pytest.fixture
async def other(gateway: Gateway) -> Other:
    tenant, _ = await gateway.make_tenant("globex")
    await gateway.publish("secret-adapter", "a" * 64, tenant)
    async with gateway.resources.database.session() as session:
        project = await projects.create(
            session, GRANTOR, tenant.id, "secret-project", None, secrets.token_bytes
        )
        person = await people.add(
            session, GRANTOR.act, "secret@example.org", "", secrets.token_bytes
        )
        await memberships.grant(
            session, GRANTOR.act, person.id, "developer", tenant.id, secrets.token_bytes
        )
    key_id, _ = await key_of(gateway, tenant, NewKey("secret-label", project.id))
    names = ABSENT | {
        "project": project.id,
        "key_id": key_id,
        "name": "secret-adapter",
        "model": "globex/secret-adapter",
        "tenant": tenant.id,
        "person_id": person.id,
    }
    return Other(tenant, names)


async def send(
    gateway: Gateway, key: str, method: str, url: str, body: Any = None
) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return await gateway.client.request(method, url, headers=headers, json=body)


BODIES = {
    "/limits/{dimension}": {"value": 1},
    "/canary": {"version": 1, "percent": 1},
    "/aliases/{alias}": {"version": 1},
}


def body_for(route: Called) -> dict[str, object] | None:
    if route.method not in ("PUT", "PATCH"):
        return None
    return next((body for end, body in BODIES.items() if route.path.endswith(end)), {})


def told(response: httpx.Response, route: Called, names: dict[str, str]) -> tuple[int, str]:
    """An answer without what the request itself named."""
    text = response.text
    named = [names.get(parameter, "") for parameter in re.findall(r"{(\w+)", route.path)]
    for name in sorted(named, key=len, reverse=True):
        text = text.replace(name, "…") if len(name) > 5 else text
    return response.status_code, re.sub(r"req_\w+|\d\d\d\d-\d\d-\d\dT[^\"]*", "", text)


def test_every_route_declares_one_permission(gateway: Gateway) -> None:
    undeclared = [r.path for r in api_routes(gateway.app) if len(r.declared) != 1]
    assert undeclared == []
    assert len(api_routes(gateway.app)) > 100
    assert {route.path for route in route_table(gateway.app)} >= OPEN


async def test_no_key_of_one_tenant_tells_another_tenants_things_from_nothing(
    gateway: Gateway, other: Other
) -> None:
    for role in TENANT_GRANTS:
        _, key = await key_of(gateway, gateway.tenant, NewKey(role, scopes=KeyScopes(role)))  # type: ignore[arg-type]  # wrong on purpose, or replaced for the test
        for route in called(gateway.app, "/v1/"):
            theirs = await send(gateway, key, route.method, route.url(other.names), body_for(route))
            absent = await send(gateway, key, route.method, route.url(ABSENT), body_for(route))
            assert "secret" not in told(theirs, route, other.names)[1], route
            assert told(theirs, route, other.names) == told(absent, route, ABSENT), route
            if route.permission not in TENANT_GRANTS[role]:
                assert theirs.status_code == 403, (route, theirs.text)
                if route.method != "HEAD":
                    assert theirs.json()["error"]["code"] == "insufficient_scope"
                    assert route.permission in theirs.json()["error"]["message"]
            else:
                assert theirs.status_code != 403, (route, theirs.text)
            names_something = set(re.findall(r"{(\w+)", route.path)) - {"dimension", "alias"}
            if names_something and theirs.status_code != 403:
                is_one = route.path.endswith(("_id}", "{project}", "{name}"))
                statuses = {404} if is_one else {200, 404}
                if route.method in ("PATCH", "POST", "PUT"):
                    statuses |= {400}  # bodies are looked at first
                assert theirs.status_code in statuses, (route, theirs.text)
    async with gateway.resources.database.reader() as session:
        assert await directory.get(session, other.tenant.id) == other.tenant


async def test_an_operators_role_opens_what_the_table_says(gateway: Gateway, other: Other) -> None:
    for role in ("owner", "operator", "finance", "read_only"):
        async with gateway.resources.database.session() as session:
            key = await admin_keys.create(
                session, GRANTOR.act, role, role, PEPPER, secrets.token_bytes
            )
        for route in called(gateway.app, "/admin/"):
            response = await send(gateway, key.text, route.method, route.url(ABSENT))
            allowed = route.permission in PLATFORM_GRANTS[role]  # type: ignore[index]  # wrong on purpose, or replaced for the test
            assert (response.status_code == 403) != allowed, (role, route, response.text)
            if not allowed:
                assert response.json()["code"] == "insufficient_scope"
    assert other.names


async def test_completions_need_the_permission_and_the_model(gateway: Gateway) -> None:
    await gateway.publish("a", "a" * 64)
    for scopes, model, status, code in (
        (KeyScopes("read_only"), "tiny", 403, "insufficient_scope"),
        (KeyScopes(permissions=("models.read",)), "tiny", 403, "insufficient_scope"),
        (KeyScopes(models=("acme/a",)), "tiny", 403, "model_not_allowed"),
        (KeyScopes(models=("acme/a",)), "acme/a@1", 200, None),
        (KeyScopes(models=("tiny",)), "acme/a", 403, "model_not_allowed"),
    ):
        _, key = await key_of(gateway, gateway.tenant, NewKey(scopes=scopes))
        body = {"model": model, "prompt": "hello", "max_tokens": 8}
        response = await send(gateway, key, "POST", "/v1/completions", body)
        assert response.status_code == status
        if code is not None:
            assert response.json()["error"]["code"] == code
        listed = await send(gateway, key, "GET", "/v1/models")
        if scopes.models is not None:
            shown = {card["id"] for card in listed.json()["data"]}
            assert shown == set(scopes.models)
            one = await send(gateway, key, "GET", f"/v1/models/{model}")
            assert one.status_code == status


async def test_a_key_for_an_address_opens_from_there_alone(gateway: Gateway) -> None:
    # The test's client comes from 127.0.0.1.
    for network, status in (("127.0.0.0/8", 200), ("10.0.0.0/8", 403)):
        made = await send(
            gateway,
            (await key_of(gateway, gateway.tenant, NewKey(scopes=KeyScopes("tenant_admin"))))[1],
            "POST",
            "/v1/keys",
            {"addresses": [network]},
        )
        assert (await send(gateway, made.json()["key"], "GET", "/v1/models")).status_code == status


IDS = st.one_of(
    st.sampled_from(["acme", "globex", "default", "secret-project", "secret-adapter", "."]),
    st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=20),
)


@given(named=st.dictionaries(st.sampled_from(sorted(ABSENT)), IDS), theirs=st.booleans())
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_no_path_that_somebody_makes_up_tells_a_thing_of_others(
    gateway: Gateway, named: dict[str, str], theirs: bool
) -> None:
    async with gateway.resources.database.reader() as session:
        tenants = await directory.list_tenants(session)
    found = next((one for one in tenants if one.name == "globex"), None)
    if found is None:
        found, _ = await gateway.make_tenant("globex")
        await gateway.publish("secret-adapter", "b" * 64, found)
        await key_of(gateway, found, NewKey("secret-label"))
    _, key = await key_of(gateway, gateway.tenant, NewKey(scopes=KeyScopes("tenant_admin")))
    names = ABSENT | {"tenant": found.id} if theirs else ABSENT
    names = names | {k: re.sub(r"[/?#%\\]", "-", v) for k, v in named.items()}
    for route in called(gateway.app, "/v1/"):
        if route.method != "GET" or "{" not in route.path:
            continue
        response = await send(gateway, key, route.method, route.url(names))
        assert "secret-label" not in response.text
        assert found.id not in response.text or found.id in names.values()
        assert response.status_code < 500
