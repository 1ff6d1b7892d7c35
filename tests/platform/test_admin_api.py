"""The admin API: what an operator does over HTTP, and who may not."""

import asyncio
import itertools
import re
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from tests.platform.conftest import NOW, PEPPER, Gateway
from tests.platform.scripted_engine import ScriptedEngine

from loraplex.platform.api.admin.admin import router
from loraplex.platform.services import Resources
from loraplex.tenants import api_keys, stored_keys

LATE = "9999-12-31T23:59:59-23:59"
BEFORE_TIME, AFTER_TIME = "0001-01-01T00:00:00%2B23:59", LATE
PRICE = {"currency": "EUR", "prompt_micros": 1, "cached_micros": 1, "completion_micros": 1}
PROBLEM = {"type", "title", "status", "detail", "instance", "code", "param"}


@pytest.fixture
def resources(resources: Resources) -> Resources:
    """With a clock that goes on a millisecond whenever it is read."""
    reads = itertools.count()
    return replace(resources, clock=lambda: NOW.timestamp() + next(reads) / 1000)


def problem_of(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert set(problem) - {"problems", "details"} == PROBLEM
    assert problem["status"] == response.status_code
    assert problem["instance"].endswith(response.headers["x-request-id"])
    assert problem["type"] == f"urn:loraplex:error:{problem['code']}"
    return problem


def routes() -> list[tuple[str, str]]:
    app = FastAPI()
    app.include_router(router)
    paths = app.openapi()["paths"]
    return sorted((method.upper(), path) for path in paths for method in paths[path])


async def test_every_route_refuses_whoever_is_no_operator(gateway: Gateway) -> None:
    assert len(routes()) > 60
    for method, path in routes():
        url = re.sub(r"{\w+}", "1", path)
        for key, status, code in (
            (None, 401, "invalid_api_key"),
            (gateway.key, 403, "admin_key_required"),
            ("lpxadm_nonsense", 401, "invalid_api_key"),
        ):
            headers = {"authorization": f"Bearer {key}" if key else ""}
            response = await gateway.client.request(method, url, headers=headers, content=b"{bad")
            found = (response.status_code, problem_of(response)["code"])
            assert found == (status, code), (method, path)


async def test_an_admin_key_opens_no_route_of_tenants(
    gateway: Gateway, admin: httpx.AsyncClient
) -> None:
    for path in ("/v1/models", "/v1/adapters"):
        response = await admin.get(f"http://gateway{path}")
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"


async def test_a_tenant_is_made_shown_changed_and_suspended(
    gateway: Gateway, admin: httpx.AsyncClient
) -> None:
    asked = {"name": "initech", "weight": 2, "limits": {"concurrency": 3}}
    made = (await admin.post("/tenants", json=asked)).json()
    assert (made["name"], made["weight"], made["status"]) == ("initech", 2, "active")
    for named in ("initech", made["id"]):
        assert (await admin.get(f"/tenants/{named}")).json() == made
    change = {"limits": {"concurrency": None, "tokens_per_minute": 9}}
    changed = (await admin.patch("/tenants/initech", json=change)).json()
    assert changed["limits"] == {
        "requests_per_minute": None,
        "tokens_per_minute": 9,
        "concurrency": None,
        "ttft_deadline_ms": None,
        "adapter_storage_bytes": None,
        "adapter_max_rank": None,
        "adapter_max_modules": None,
        "adapter_floor_bytes": None,
        "adapter_cap_bytes": None,
        "adapter_pin_bytes": None,
        "adapter_host_floor_bytes": None,
        "adapter_host_cap_bytes": None,
    }
    assert changed["weight"] == 2
    assert (await admin.patch("/tenants/initech", json={"weight": 5})).json()["weight"] == 5
    suspended = await admin.post("/tenants/acme/suspend")
    assert (suspended.status_code, suspended.json()["status"]) == (200, "suspended")
    assert (await gateway.chat()).status_code == 403
    assert (await admin.post("/tenants/acme/resume")).json()["status"] == "active"
    assert (await gateway.chat()).status_code == 200


async def test_changed_limits_hold_for_the_next_request(
    gateway: Gateway, admin: httpx.AsyncClient
) -> None:
    await admin.patch("/tenants/acme", json={"limits": {"requests_per_minute": 1}})
    assert (await gateway.chat()).status_code == 200
    assert (await gateway.chat()).status_code == 429


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "param"),
    [
        ("POST", "/tenants", {"name": "Acme"}, 400, "invalid_value", None),
        ("POST", "/tenants", {"name": "acme"}, 409, "tenant_exists", None),
        ("POST", "/tenants", {}, 400, "missing_required_parameter", "name"),
        ("POST", "/tenants", {"name": "b", "x": 1}, 400, "unknown_parameter", "x"),
        ("POST", "/tenants", {"name": "b", "weight": 0}, 400, "invalid_value", "weight"),
        ("PATCH", "/tenants/acme", {"limits": {"concurrency": 0}}, 400, "invalid_value", None),
        ("GET", "/tenants/nobody", None, 404, "tenant_not_found", None),
        ("GET", "/tenants/tnt_nobody", None, 404, "tenant_not_found", None),
        ("GET", "/tenants?limit=0", None, 400, "invalid_value", "limit"),
        ("GET", "/tenants?nonsense=1", None, 400, "unknown_parameter", "nonsense"),
        ("GET", "/tenants?after=zz", None, 400, "invalid_value", "after"),
        ("GET", "/tenants?after=%00", None, 400, "invalid_value", "after"),
        ("GET", "/tenants/%00", None, 400, "invalid_value", "tenant"),
        ("GET", "/usage?model=%00", None, 400, "invalid_value", "model"),
        ("POST", "/tenants/acme/keys", {"label": "a\0"}, 400, "invalid_value", "label"),
        ("GET", "/tenants?limit=1&limit=2", None, 400, "invalid_value", "limit"),
        ("GET", "/tenants/acme?x=1", None, 400, "unknown_parameter", "x"),
        ("GET", "/tenants/acme", {"x": 1}, 400, "unknown_parameter", "x"),
        ("POST", "/tenants/acme/suspend", {"x": 1}, 400, "unknown_parameter", "x"),
        ("POST", "/tenants/acme/suspend?x=1", None, 400, "unknown_parameter", "x"),
        ("POST", "/tenants/acme/resume", [1], 400, "invalid_json", None),
        ("POST", "/tenants/acme/keys?x=1", {}, 400, "unknown_parameter", "x"),
        ("POST", "/tenants/acme/keys/k/revoke", {"x": 1}, 400, "unknown_parameter", "x"),
        ("PATCH", "/tenants/acme?x=1", {}, 400, "unknown_parameter", "x"),
        ("GET", "/tenants/acme/keys?after=x", None, 400, "invalid_value", "after"),
        ("GET", "/usage?since=yesterday", None, 400, "invalid_value", "since"),
        ("GET", "/usage?since=2026-11-01T00:00:00", None, 400, "invalid_value", "since"),
        ("GET", "/usage?since=-1", None, 400, "invalid_value", "since"),
        ("GET", "/usage?until=1796083200", None, 400, "invalid_value", "until"),
        *(
            ("GET", f"/usage{of}?{side}={moment}", None, 400, "invalid_value", side)
            for of in ("", "/summary")
            for side in ("since", "until")
            for moment in (BEFORE_TIME, AFTER_TIME)
        ),
        ("POST", "/tenants/acme/keys", {"expires_at": LATE}, 400, "invalid_value", "expires_at"),
        ("POST", "/prices", PRICE | {"valid_from": LATE}, 400, "invalid_value", "valid_from"),
        ("GET", "/usage/summary?group_by=person", None, 400, "invalid_value", "group_by"),
        ("GET", "/usage/summary?group_by=hour&group_by=day", None, 400, "invalid_value", None),
        ("POST", "/tenants/acme/keys", {"expires_at": "soon"}, 400, "invalid_value", "expires_at"),
        ("POST", "/tenants/acme/keys/k/revoke", {}, 404, "key_not_found", None),
        ("GET", "/nothing", None, 404, "route_not_found", None),
        ("DELETE", "/tenants", None, 405, "method_not_allowed", None),
    ],
)
async def test_errors_are_problems(
    admin: httpx.AsyncClient,
    method: str,
    path: str,
    body: object,
    status: int,
    code: str,
    param: str | None,
) -> None:
    response = await admin.request(method, path, json=body)
    problem = problem_of(response)
    assert (response.status_code, problem["code"]) == (status, code)
    assert param in (None, problem["param"])


async def test_a_key_is_shown_once_works_and_can_be_revoked(
    gateway: Gateway, admin: httpx.AsyncClient
) -> None:
    asked = {"label": "ci", "expires_at": "2027-01-01T00:00:00Z"}
    made = (await admin.post("/tenants/acme/keys", json=asked)).json()
    headers = {"authorization": f"Bearer {made['key']}"}
    assert (await gateway.client.get("/v1/models", headers=headers)).status_code == 200
    listed = await admin.get("/tenants/acme/keys")
    assert made["key"] not in listed.text
    assert listed.json()["data"][-1]["id"] == made["id"]
    assert listed.json()["data"][-1]["expires_at"] == "2027-01-01T00:00:00Z"
    revoked = (await admin.post(f"/tenants/acme/keys/{made['id']}/revoke")).json()
    assert revoked["revoked_at"] is not None
    refused = await gateway.client.get("/v1/models", headers=headers)
    assert refused.json()["error"]["code"] == "key_revoked"


async def test_a_key_of_another_tenant_is_not_found(
    gateway: Gateway, admin: httpx.AsyncClient
) -> None:
    await gateway.make_tenant("other")
    made = (await admin.post("/tenants/acme/keys", json={})).json()
    response = await admin.post(f"/tenants/other/keys/{made['id']}/revoke")
    assert problem_of(response)["code"] == "key_not_found"


@pytest.mark.parametrize("path", ["/tenants", "/tenants/acme/keys", "/usage", "/prices"])
async def test_lists_come_in_pages_that_join_to_the_whole(
    gateway: Gateway, admin: httpx.AsyncClient, path: str
) -> None:
    for i in range(4):
        await gateway.make_tenant(f"t{i}")
        await admin.post("/tenants/acme/keys", json={})
        price = {"prompt_micros": i, "cached_micros": 0, "completion_micros": 0}
        await admin.post("/prices", json=price | {"currency": "EUR"})
        await gateway.chat()
    whole = (await admin.get(path)).json()
    assert whole["object"] == "list"
    assert whole["has_more"] is False
    ids = [item["id"] for item in whole["data"]]
    assert (whole["first_id"], whole["last_id"]) == (ids[0], ids[-1])
    seen: list[str] = []
    more = True
    while more:
        query = {"limit": "2"} | ({"after": seen[-1]} if seen else {})
        page = (await admin.get(path, params=query)).json()
        seen += [item["id"] for item in page["data"]]
        more = page["has_more"]
        assert page["last_id"] == seen[-1]
    assert seen == ids
    assert len(ids) >= 4


async def test_an_empty_list_has_no_ids(admin: httpx.AsyncClient) -> None:
    assert (await admin.get("/usage")).json() == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


async def test_usage_is_charged_at_the_price_of_its_admission(
    gateway: Gateway, admin: httpx.AsyncClient
) -> None:
    engine = gateway.engine
    answer, engine.answer = engine.answer, None
    first = {"currency": "EUR", "prompt_micros": 7, "cached_micros": 3, "completion_micros": 11}
    price = (await admin.post("/prices", json=first)).json()
    running = asyncio.create_task(gateway.chat())
    request_id = (await engine.submitted()).request_id
    await admin.post("/prices", json=first | {"prompt_micros": 7000})
    engine.emit(request_id, "a", "b")
    engine.finish(request_id, cached=2)
    await running
    engine.answer = answer
    (row,) = (await admin.get("/usage", params={"tenant": "acme"})).json()["data"]
    expected = (row["prompt_tokens"] - 2) * 7 + 2 * 3 + 2 * 11
    assert (row["price_id"], row["cost_pico"]) == (price["id"], str(expected))
    await gateway.chat()
    newest, _ = (await admin.get("/usage")).json()["data"]
    assert int(newest["cost_pico"]) == newest["prompt_tokens"] * 7000 + 3 * 11


async def test_what_the_platform_broke_off_costs_nothing(
    gateway: Gateway, admin: httpx.AsyncClient
) -> None:
    def breaks(engine: ScriptedEngine, request_id: str) -> None:
        engine.emit(request_id, "a")
        engine.fail(request_id)

    price = {"currency": "EUR", "prompt_micros": 1, "cached_micros": 1, "completion_micros": 1}
    await admin.post("/prices", json=price)
    gateway.engine.answer = breaks
    assert (await gateway.chat()).status_code == 500
    (row,) = (await admin.get("/usage")).json()["data"]
    assert (row["finish_reason"], row["cost_pico"], row["currency"]) == ("error", "0", "EUR")
    assert row["completion_tokens"] == 1


async def test_without_a_price_usage_says_so(gateway: Gateway, admin: httpx.AsyncClient) -> None:
    await gateway.chat()
    (group,) = (await admin.get("/usage/summary")).json()["data"]
    assert (group["currency"], group["cost"], group["requests"]) == (None, "0", 1)


async def test_a_summary_is_grouped_as_asked(gateway: Gateway, admin: httpx.AsyncClient) -> None:
    await gateway.publish("support", "d1")
    await gateway.chat()
    await gateway.chat(model="acme/support")
    query = [("group_by", "tenant"), ("group_by", "model"), ("group_by", "day")]
    groups = (await admin.get("/usage/summary", params=query)).json()["data"]
    assert [(g["tenant"], g["model"], g["since"], g["requests"]) for g in groups] == [
        ("acme", "acme/support@1", "2026-11-30T00:00:00Z", 1),
        ("acme", "tiny", "2026-11-30T00:00:00Z", 1),
    ]
    one = (await admin.get("/usage/summary", params={"model": "acme/support"})).json()["data"]
    assert [g["requests"] for g in one] == [1]


async def test_a_post_sent_again_has_one_effect_and_the_same_answer(
    admin: httpx.AsyncClient,
) -> None:
    headers = {"idempotency-key": "make-initech"}
    first = await admin.post("/tenants", json={"name": "initech"}, headers=headers)
    again = await admin.post("/tenants", json={"name": "initech"}, headers=headers)
    assert first.status_code == again.status_code == 201
    assert again.json() == first.json()
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    other = await admin.post("/tenants", json={"name": "umbrella"}, headers=headers)
    assert (other.status_code, problem_of(other)["code"]) == (422, "idempotency_key_reuse")


async def test_a_key_creation_sent_again_shows_the_same_key_which_is_stored_nowhere(
    gateway: Gateway, admin: httpx.AsyncClient
) -> None:
    headers = {"idempotency-key": "k1"}
    first = (await admin.post("/tenants/acme/keys", json={}, headers=headers)).json()
    again = (await admin.post("/tenants/acme/keys", json={}, headers=headers)).json()
    assert again == first
    other = await admin.post("/tenants/acme/keys", json={}, headers={"idempotency-key": "k2"})
    assert other.json()["key"] != first["key"]
    async with gateway.resources.database.reader() as session:
        principal = await stored_keys.verify(session, first["key"], PEPPER, NOW)
        assert principal.key_id == first["id"]
        assert len(await api_keys.list_keys(session, gateway.tenant.id)) == 3
    secret = first["key"].split("_")[2]
    for path in gateway.resources.settings.data_dir.glob("loraplex.db*"):
        assert secret.encode() not in path.read_bytes()


async def test_work_that_failed_gives_its_key_back(admin: httpx.AsyncClient) -> None:
    headers = {"idempotency-key": "k"}
    for _ in range(2):
        response = await admin.post("/tenants", json={"name": "acme"}, headers=headers)
        assert problem_of(response)["code"] == "tenant_exists"
    made = await admin.post("/tenants", json={"name": "initech"}, headers=headers)
    assert made.status_code == 201


async def test_of_posts_at_once_one_is_served_and_others_are_told_to_wait(
    admin: httpx.AsyncClient,
) -> None:
    headers = {"idempotency-key": "k"}
    responses = await asyncio.gather(
        *(admin.post("/tenants", json={"name": "initech"}, headers=headers) for _ in range(6))
    )
    made = [response for response in responses if response.status_code == 201]
    assert len({response.json()["id"] for response in made}) == 1
    for response in set(responses) - set(made):
        assert problem_of(response)["code"] == "idempotency_in_progress"
        assert response.headers["retry-after"] == "1"


async def test_the_description_of_the_api_has_every_route(gateway: Gateway) -> None:
    described = (await gateway.client.get("/openapi.json")).json()["paths"]
    for method, path in routes():
        operation = described[path][method.lower()]
        assert operation["summary"]
        assert operation["description"]
        assert operation["security"] == [{"adminKey": []}]
        if method == "POST" and path.endswith(("tenants", "keys", "prices", "adapters")):
            assert operation["requestBody"]
    assert "/v1/adapters" in described
