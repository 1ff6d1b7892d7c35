"""Projects, keys and limits over REST: by a tenant for itself, and by operators for it."""

import logging
import secrets
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from tests.platform.conftest import NOW, PEPPER, Gateway

from loraplex.tenants import audit_chain, key_changes
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.columns import Base
from loraplex.tenants.key_changes import NewKey
from loraplex.tenants.key_scopes import KeyScopes, of_platform

IDEMPOTENT = {"idempotency-key": "again"}


@pytest.fixture
async def own(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """The client of the tenant's administrator."""
    wanted = NewKey("admin", scopes=KeyScopes("tenant_admin"))
    async with gateway.resources.database.session() as session:
        grantor = of_platform(Act(CLI, NOW))
        key = await key_changes.create(
            session, grantor, gateway.tenant, wanted, PEPPER, secrets.token_bytes
        )
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(gateway.app),
        base_url="http://gateway/v1",
        headers={"authorization": f"Bearer {key.text}"},
    ) as client:
        yield client


@pytest.fixture(params=["own", "admin"])
async def side(request: pytest.FixtureRequest, own: httpx.AsyncClient, admin: httpx.AsyncClient):
    """Both sides' client at the tenant's things."""
    if request.param == "admin":
        admin.base_url = httpx.URL("http://gateway/admin/v1/tenants/acme")
        return admin
    return own


def code_of(response: httpx.Response) -> tuple[int, str]:
    body: dict[str, Any] = response.json()
    return response.status_code, body.get("error", body)["code"]


async def test_projects_and_keys_live_over_rest(side: httpx.AsyncClient, gateway: Gateway) -> None:
    made = await side.post("/projects", json={"name": "web", "models": ["tiny"]})
    assert (made.status_code, made.json()["models"]) == (201, ["tiny"])
    body = {"project": "web", "label": "l", "models": ["tiny"], "addresses": ["127.0.0.0/8"]}
    key = (await side.post("/keys", json=body)).json()
    headers = {"authorization": f"Bearer {key['key']}"}
    assert (await gateway.client.get("/v1/models", headers=headers)).status_code == 200
    shown = (await side.get(f"/keys/{key['id']}")).json()
    assert {**shown, "last_used_at": None} == {k: v for k, v in key.items() if k != "key"}
    assert (await side.get("/keys?project=web")).json()["data"] == [shown]
    narrowed = await side.patch(f"/keys/{key['id']}", json={"role": "read_only", "label": "m"})
    assert (narrowed.json()["role"], narrowed.json()["models"]) == ("read_only", ["tiny"])
    renamed = (await side.patch("/projects/web", json={"name": "shop", "models": None})).json()
    assert (renamed["id"], renamed["name"], renamed["models"]) == (made.json()["id"], "shop", None)
    assert (await side.get("/projects/shop")).json() == renamed
    assert (await side.post("/projects/shop/archive")).json()["status"] == "archived"
    assert code_of(await gateway.client.get("/v1/models", headers=headers)) == (
        403,
        "project_archived",
    )
    assert (await side.post("/projects/shop/restore")).json()["status"] == "active"
    assert (await gateway.client.get("/v1/models", headers=headers)).status_code == 200
    names = [one["name"] for one in (await side.get("/projects")).json()["data"]]
    assert sorted(names) == ["default", "shop"]


async def test_a_rotation_sent_again_shows_the_same_secret(
    side: httpx.AsyncClient, gateway: Gateway
) -> None:
    key = (await side.post("/keys", json={"label": "k"}, headers=IDEMPOTENT)).json()
    again = await side.post("/keys", json={"label": "k"}, headers=IDEMPOTENT)
    assert (again.json(), again.headers["idempotent-replayed"]) == (key, "true")
    rotating = {"idempotency-key": "rotate"}
    path = f"/keys/{key['id']}/rotate"
    first = (await side.post(path, json={"grace_s": 60}, headers=rotating)).json()
    assert first["id"] == key["id"]
    assert first["key"] != key["key"]
    assert first["previous_until"] == (NOW + timedelta(seconds=60)).isoformat().replace(
        "+00:00", "Z"
    )
    repeated = await side.post(path, json={"grace_s": 60}, headers=rotating)
    assert repeated.json() == first
    other = await side.post(path, json={"grace_s": 61}, headers=rotating)
    assert code_of(other) == (422, "idempotency_key_reuse")
    ended = await side.post(f"/keys/{key['id']}/revoke-previous")
    assert (ended.status_code, ended.json()["previous_until"]) == (200, None)
    lost = (await side.post(path)).json()
    for text_, status in ((key["key"], 401), (first["key"], 200), (lost["key"], 200)):
        headers = {"authorization": f"Bearer {text_}"}
        assert (await gateway.client.get("/v1/models", headers=headers)).status_code == status


async def test_limits_are_set_shown_and_removed_within_what_stands_above(
    side: httpx.AsyncClient, gateway: Gateway
) -> None:
    await gateway.publish("a", "a" * 64)
    key = (await side.post("/keys", json={})).json()["id"]
    for path in ("/projects/default", f"/keys/{key}", "/adapters/a"):
        body = {"value": 5, "burst": 4, "mode": "shadow", "on_store_loss": "closed"}
        put = await side.put(f"{path}/limits/requests_per_minute", json=body)
        assert put.status_code == 200
        assert put.json().items() >= body.items()
        assert (await side.get(f"{path}/limits")).json()["data"] == [put.json()]
    more = await side.put(f"/keys/{key}/limits/requests_per_minute", json={"value": 6})
    assert code_of(more) == (400, "exceeds_parent")
    assert "the project has 5" in more.text
    beyond = await side.put("/adapters/a/limits/concurrency", json={"value": 10**9})
    assert code_of(beyond) == (400, "exceeds_parent")
    for body, code in (
        ({"value": 1, "x": 1}, "unknown_parameter"),
        ({"value": 0}, "invalid_value"),
        ({}, "missing_required_parameter"),
    ):
        refused = await side.put(f"/keys/{key}/limits/requests_per_minute", json=body)
        assert code_of(refused) == (400, code)
    assert code_of(await side.put("/adapters/a/limits/speed", json={"value": 1}))[0] == 400
    assert (await side.delete("/adapters/a/limits/requests_per_minute")).json()["deleted"]
    gone = await side.delete("/adapters/a/limits/requests_per_minute")
    assert code_of(gone) == (404, "limit_not_found")


async def test_limits_of_other_keys_are_told_to_who_may_read_keys(
    gateway: Gateway, own: httpx.AsyncClient
) -> None:
    other = (await own.post("/keys", json={"label": "other"})).json()["id"]
    mine = (await own.post("/keys", json={"label": "mine"})).json()
    headers = {"authorization": f"Bearer {mine['key']}"}
    for key_id, status in ((mine["id"], 200), (other, 404), ("nowhere", 404)):
        answer = await gateway.client.get(f"/v1/keys/{key_id}/limits", headers=headers)
        assert answer.status_code == status, answer.text
    assert (await own.get(f"/keys/{other}/limits")).status_code == 200


async def test_a_tenant_has_no_way_to_its_own_limits_or_to_more_than_it_has(
    own: httpx.AsyncClient,
) -> None:
    assert (await own.put("/limits/concurrency", json={"value": 10**9})).status_code in (404, 405)
    for body in ({"role": "owner"}, {"role": "finance"}, {"permissions": ["prices.write"]}):
        assert (await own.post("/keys", json=body)).status_code == 400
    (first, *_) = (await own.get("/keys")).json()["data"]
    me = next(k for k in (await own.get("/keys")).json()["data"] if k["label"] == "admin")
    assert code_of(await own.patch(f"/keys/{me['id']}", json={"models": None})) == (403, "own_key")
    refused = await own.put(f"/keys/{me['id']}/limits/concurrency", json={"value": 1})
    assert code_of(refused) == (403, "own_key")
    assert first


async def test_operators_set_what_only_they_may(gateway: Gateway, admin: httpx.AsyncClient) -> None:
    changed = await admin.patch(
        "/tenants/acme", json={"service_tiers": ["flex", "default"], "time_zone": "Asia/Tokyo"}
    )
    assert changed.json()["service_tiers"] == ["default", "flex"]
    assert changed.json()["time_zone"] == "Asia/Tokyo"
    assert (await admin.get("/tenants/acme")).json() == changed.json()
    for body, field in (
        ({"service_tiers": ["fast"]}, "service_tiers"),
        ({"service_tiers": []}, "service_tiers"),
        ({"time_zone": "Mars/Olympus"}, "time_zone"),
    ):
        assert (await admin.patch("/tenants/acme", json=body)).json()["param"] == field
    limit = await admin.put("/tenants/acme/limits/tokens_per_month", json={"value": 1000})
    assert limit.json()["scope"] == "tenant"
    body = {"scope": "tenant", "dimension": "tokens_per_month", "amount": -5, "reason": "gift"}
    adjusted = await admin.post("/tenants/acme/budget-adjustments", json=body)
    assert (adjusted.status_code, adjusted.json()["spent"]) == (201, -5)
    # A month that has begun stays as it was; the next one ends by the new zone.
    assert adjusted.json()["period_start"] == "2026-11-01T00:00:00Z"
    del body["amount"]
    reset = await admin.post("/tenants/acme/budget-adjustments/reset", json=body)
    assert (reset.status_code, reset.json()["amount"], reset.json()["spent"]) == (201, 5, 0)
    listed = (await admin.get("/tenants/acme/budget-adjustments")).json()["data"]
    assert {(one["amount"], one["reason"]) for one in listed} == {(-5, "gift"), (5, "gift")}
    made = (await admin.post("/admin-keys", json={"role": "finance", "label": "f"})).json()
    headers = {"authorization": f"Bearer {made['key']}"}
    refused = await admin.post("/tenants", json={"name": "x"}, headers=headers)
    assert code_of(refused) == (403, "insufficient_scope")
    assert (await admin.get("/prices", headers=headers)).status_code == 200
    assert (await admin.post(f"/admin-keys/{made['id']}/revoke")).json()["revoked_at"]
    assert (await admin.get("/prices", headers=headers)).status_code == 401
    suspended = await admin.post("/tenants/acme/suspend", json={"reason": "unpaid"})
    assert suspended.json()["status"] == "suspended"
    (event, *_) = (await admin.get("/audit?action=tenant.suspend")).json()["data"]
    assert (event["detail"], event["actor_kind"]) == ({"reason": "unpaid"}, "admin_key")
    assert event["request_id"] == suspended.headers["x-request-id"]
    head = (await admin.get("/audit/head")).json()
    async with gateway.resources.database.snapshot() as session:
        report = await audit_chain.verify(session, head["hash"])
    assert report.is_whole
    assert report.head == head["hash"]


async def test_a_secret_is_nowhere_but_in_the_answer_that_shows_it(
    gateway: Gateway, own: httpx.AsyncClient, admin: httpx.AsyncClient, caplog: Any
) -> None:
    caplog.set_level(logging.DEBUG, "loraplex")
    shown = [(await own.post("/keys", json={}, headers=IDEMPOTENT)).json()]
    shown.append((await own.post(f"/keys/{shown[0]['id']}/rotate")).json())
    shown.append((await admin.post("/admin-keys", json={"role": "read_only"})).json())
    texts = [one["key"] for one in shown]
    asked = [(own, path) for path in ("/keys", "/audit")]
    asked += [(admin, path) for path in ("/admin-keys", "/audit", "/tenants/acme/keys")]
    for text_ in texts:
        asked += [(own, f"/{what}/{text_}") for what in ("keys", "projects", "adapters", "models")]
        asked += [(admin, f"/tenants/{text_}"), (own, f"/audit?after={text_}")]
        asked += [(own, f"/keys?{text_}=1")]
    answers = [(await client.get(path)).text for client, path in asked]
    for text_ in texts:
        headers = {"authorization": f"Bearer {text_}"}
        answers.append((await own.get("/nothing", headers=headers)).text)
        answers.append((await own.post("/keys", json={"project": text_})).text)
    async with gateway.resources.database.reader() as session:
        for table in Base.metadata.tables.values():
            rows = await session.execute(text(f'SELECT * FROM "{table.name}"'))
            answers.append(repr([tuple(row) for row in rows]))
    everything = "\n".join([*answers, caplog.text])
    for text_ in texts:
        assert text_.rpartition("_")[2][:8] not in everything


async def test_text_that_a_database_cannot_hold_is_refused_wherever_it_stands(
    own: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    tenant = "/tenants/acme"
    adjustment = {
        "scope": "tenant",
        "dimension": "tokens_per_month",
        "amount": -1,
        "reason": "a\0",
    }
    answers = [
        await own.get("/adapters/uploads/%00"),
        await own.delete("/adapters/uploads/%00"),
        await own.get("/audit?action=%00"),
        await own.post("/keys", json={"project": "\0"}),
        await own.post("/keys", json={"models": ["a\0"]}),
        await admin.post(f"{tenant}/budget-adjustments", json=adjustment),
    ]
    assert [answer.status_code for answer in answers] == [400] * len(answers)
    assert all("U+0000" in answer.text for answer in answers)


async def test_a_key_gives_people_no_more_than_it_has(own: httpx.AsyncClient) -> None:
    may = ["people.write", "people.read", "keys.write"]
    narrow = {"role": "tenant_admin", "permissions": may}
    bounded = {"role": "tenant_admin", "models": ["tiny"]}
    member = {"email": "eve@x.example", "role": "tenant_admin"}
    made = (await own.post("/members", json=member | {"email": "ada@x.example"})).json()
    for wanted in (narrow, bounded):
        key = (await own.post("/keys", json=wanted)).json()["key"]
        headers = {"authorization": f"Bearer {key}"}
        refused = await own.post("/members", json=member, headers=headers)
        assert code_of(refused) == (400, "exceeds_parent")
        refused = await own.patch(
            f"/members/{made['id']}", json={"role": "tenant_admin"}, headers=headers
        )
        assert code_of(refused) == (400, "exceeds_parent")
    assert len((await own.get("/members")).json()["data"]) == 1


async def test_a_key_with_limits_makes_nothing_that_has_none(own: httpx.AsyncClient) -> None:
    key = (await own.post("/keys", json={"role": "tenant_admin"})).json()
    other = (await own.post("/keys", json={"role": "tenant_admin"})).json()
    headers = {"authorization": f"Bearer {key['key']}"}
    limit = f"/keys/{key['id']}/limits/tokens_per_month"
    assert (await own.put(limit, json={"value": 5})).status_code == 200
    for path, body in (
        ("/keys", {}),
        (f"/keys/{other['id']}/rotate", {}),
        ("/members", {"email": "eve@x.example", "role": "tenant_admin"}),
    ):
        refused = await own.post(path, json=body, headers=headers)
        assert code_of(refused) == (400, "exceeds_parent")
        assert refused.json()["error"]["param"] == "limits"
    # Its own secret it may renew.
    assert (await own.post(f"/keys/{key['id']}/rotate", headers=headers)).status_code == 200
    await own.put(limit, json={"value": 5, "mode": "shadow"})
    key = (await own.post(f"/keys/{key['id']}/rotate")).json()
    headers = {"authorization": f"Bearer {key['key']}"}
    assert (await own.post("/keys", json={}, headers=headers)).status_code == 201
