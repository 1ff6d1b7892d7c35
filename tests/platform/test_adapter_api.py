"""A tenant's adapters over REST: shown, aliased, pinned, retired; the same for operators."""

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tests.platform.conftest import NOW, PEPPER, Gateway

from loraplex.tenants import admin_keys

Answer = tuple[int, Any]


@dataclass
class Api:
    """One of the two APIs, on the adapters of `acme`."""

    client: httpx.AsyncClient
    prefix: str
    actor: str

    async def call(self, method: str, path: str, **options: Any) -> Answer:
        response = await self.client.request(method, f"{self.prefix}{path}", **options)
        return response.status_code, response.json() if response.content else None

    async def code(self, method: str, path: str, **options: Any) -> Answer:
        """Status and code of an error, whichever form it has."""
        status, body = await self.call(method, path, **options)
        return status, body["code"] if "code" in body else body["error"]["code"]


@pytest.fixture(params=["tenant", "operator"])
async def api(request: pytest.FixtureRequest, gateway: Gateway) -> AsyncIterator[Api]:
    for digest in ("d1", "d2", "d3"):
        await gateway.publish("support", digest)
    if request.param == "tenant":
        key_id = gateway.key.split("_")[1]
        yield Api(gateway.client, "/v1/adapters", key_id)
        return
    async with gateway.resources.database.session() as session:
        key = await admin_keys.mint(session, "test", PEPPER, NOW, secrets.token_bytes)
    headers = {"authorization": f"Bearer {key.text}"}
    transport = httpx.ASGITransport(gateway.app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://gateway", headers=headers
    ) as client:
        yield Api(client, "/admin/v1/tenants/acme/adapters", key.key_id)


async def test_an_adapter_is_shown_with_its_versions_and_aliases(api: Api) -> None:
    await api.call("PUT", "/support/aliases/prod", json={"version": 2})
    status, adapter = await api.call("GET", "/support")
    assert (status, adapter["id"], adapter["num_versions"]) == (200, "acme/support", 3)
    assert [version["version"] for version in adapter["versions"]] == [3, 2, 1]
    assert [alias["id"] for alias in adapter["aliases"]] == ["acme/support:prod"]
    one = await api.call("GET", "/support/versions/2")
    assert one == (200, adapter["versions"][1])
    assert (one[1]["digest"], one[1]["status"], one[1]["self_test"]) == ("d2", "ready", None)


async def test_versions_come_in_pages(api: Api) -> None:
    _, first = await api.call("GET", "/support/versions?limit=2")
    assert ([v["version"] for v in first["data"]], first["has_more"]) == ([3, 2], True)
    _, rest = await api.call("GET", f"/support/versions?after={first['last_id']}")
    assert ([v["version"] for v in rest["data"]], rest["has_more"]) == ([1], False)


async def test_an_alias_is_made_flipped_and_rolled_back(api: Api, gateway: Gateway) -> None:
    path = "/support/aliases/prod"
    for version in (1, 2, 2):
        status, alias = await api.call("PUT", path, json={"version": version})
    assert (status, alias["version"], alias["previous"]) == (200, 2, 1)
    answer = await gateway.chat(model="acme/support:prod")
    assert answer.json()["model"] == "acme/support:prod"
    assert answer.headers["x-loraplex-model"] == "acme/support@2"
    assert (await api.call("POST", f"{path}/rollback"))[1]["version"] == 1
    assert await api.code("POST", f"{path}/rollback") == (409, "nothing_to_move_to")
    assert (await gateway.chat(model="acme/support:prod")).headers["x-loraplex-model"] == (
        "acme/support@1"
    )
    assert {row.model for row in await gateway.usage()} == {"acme/support@2", "acme/support@1"}
    for _ in range(2):
        assert await api.call("DELETE", path) == (204, None)
    assert await api.code("GET", path) == (404, "model_not_found")


async def test_a_flip_may_depend_on_what_the_alias_means_now(api: Api) -> None:
    path = "/support/aliases/prod"
    await api.call("PUT", path, json={"version": 1, "expected": 0})
    assert await api.code("PUT", path, json={"version": 2, "expected": 3}) == (412, "alias_moved")
    shown = await api.client.get(f"{api.prefix}{path}")
    stale, fresh = {"if-match": '"3"'}, {"if-match": shown.headers["etag"]}
    assert await api.code("PUT", path, json={"version": 2}, headers=stale) == (412, "alias_moved")
    status, alias = await api.call("PUT", path, json={"version": 2}, headers=fresh)
    assert (status, alias["version"]) == (200, 2)
    for header in ("*", 'W/"1"', '"1", "2"', '"x"'):
        asked = {"json": {"version": 2}, "headers": {"if-match": header}}
        assert (await api.code("PUT", path, **asked))[0] == 400


async def test_a_canary_is_set_promoted_and_cleared(api: Api, gateway: Gateway) -> None:
    path = "/support/aliases/prod"
    await api.call("PUT", path, json={"version": 1})
    for _ in range(2):
        _, alias = await api.call("PUT", f"{path}/canary", json={"version": 2, "percent": 100})
        assert alias["canary"] == {"version": 2, "percent": 100}
    answer = await gateway.chat(model="acme/support:prod")
    assert answer.headers["x-loraplex-model"] == "acme/support@2"
    _, alias = await api.call("POST", f"{path}/canary/promote")
    assert (alias["version"], alias["previous"], alias["canary"]) == (2, 1, None)
    await api.call("PUT", f"{path}/canary", json={"version": 3, "percent": 1})
    for _ in range(2):
        assert (await api.call("DELETE", f"{path}/canary"))[1]["canary"] is None


async def test_a_sticky_text_always_meets_the_same_version(api: Api, gateway: Gateway) -> None:
    await api.call("PUT", "/support/aliases/prod", json={"version": 1})
    await api.call("PUT", "/support/aliases/prod/canary", json={"version": 2, "percent": 50})
    ran: dict[str, set[str]] = {}
    for _ in range(2):
        for user in map(str, range(12)):
            answer = await gateway.client.post(
                "/v1/completions",
                json={"model": "acme/support:prod", "prompt": "a", "max_tokens": 1},
                headers={"x-loraplex-sticky": user},
            )
            ran.setdefault(user, set()).add(answer.headers["x-loraplex-model"])
    assert all(len(models) == 1 for models in ran.values())
    assert set.union(*ran.values()) == {"acme/support@1", "acme/support@2"}


async def test_a_sticky_text_has_a_bounded_length(gateway: Gateway) -> None:
    response = await gateway.client.post(
        "/v1/completions",
        json={"model": "tiny", "prompt": "a"},
        headers={"x-loraplex-sticky": "x" * 257},
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x-loraplex-sticky"


async def test_a_version_is_retired_and_restored(api: Api, gateway: Gateway) -> None:
    path = "/support/versions/3"
    for _ in range(2):
        status, version = await api.call("POST", f"{path}/retire")
    assert (status, version["status"]) == (200, "retired")
    assert (await gateway.chat(model="acme/support@3")).status_code == 404
    assert (await gateway.chat(model="acme/support")).headers["x-loraplex-model"] == (
        "acme/support@2"
    )
    for _ in range(2):
        assert (await api.call("POST", f"{path}/restore"))[1]["status"] == "ready"
    assert (await gateway.chat(model="acme/support@3")).status_code == 200


async def test_a_version_that_an_alias_means_is_not_retired_or_drained(api: Api) -> None:
    await api.call("PUT", "/support/aliases/prod", json={"version": 1})
    path = "/support/versions/1"
    assert await api.code("POST", f"{path}/retire") == (409, "version_in_use")
    assert await api.code("DELETE", path) == (409, "version_in_use")
    assert (await api.call("POST", f"{path}/retire?force=true"))[1]["status"] == "retired"
    assert await api.code("GET", "/support/aliases/prod") == (404, "model_not_found")


async def test_pins_are_bounded_by_the_tenants_limit(
    api: Api, gateway: Gateway, admin: httpx.AsyncClient
) -> None:
    path = "/support/versions/1/pin"
    assert await api.code("PUT", path) == (409, "pin_limit_reached")
    await admin.patch("/tenants/acme", json={"limits": {"adapter_pin_bytes": 1500}})
    for _ in range(2):
        assert (await api.call("PUT", path))[1]["is_pinned"] is True
    assert await api.code("PUT", "/support/versions/2/pin") == (409, "pin_limit_reached")
    for _ in range(2):
        assert (await api.call("DELETE", path))[1]["is_pinned"] is False


@pytest.mark.parametrize(
    ("method", "path", "body", "param"),
    [
        ("PUT", "/support/aliases/prod", {"version": 0}, "version"),
        ("PUT", "/support/aliases/prod", {"version": "1"}, "version"),
        ("PUT", "/support/aliases/prod", {}, "version"),
        ("PUT", "/support/aliases/prod", {"version": 1, "x": 1}, "x"),
        ("PUT", "/support/aliases/Prod", {"version": 1}, None),
        ("PUT", "/support/aliases/prod/canary", {"version": 1, "percent": 0}, "percent"),
        ("PUT", "/support/aliases/prod/canary", {"version": 1, "percent": 1.5}, "percent"),
        ("GET", "/support/versions/0", None, "number"),
        ("GET", "/support/versions/x", None, "number"),
        ("GET", "/support/versions/1.0", None, "number"),
        ("GET", "/support/versions/01", None, "number"),
        ("PUT", "/support/versions/+1/pin", None, "number"),
        ("DELETE", "/support?mode=now", None, "mode"),
        ("DELETE", "/support?force=true", None, "force"),
        ("POST", "/support/versions/1/restore", {"x": 1}, "x"),
        ("GET", "/sup%00port", None, "name"),
    ],
)
async def test_what_is_wrong_is_refused_by_field(
    api: Api, method: str, path: str, body: object, param: str | None
) -> None:
    status, answer = await api.call(method, path, json=body)
    assert (status, (answer.get("error") or answer)["param"]) == (400, param)


async def test_another_tenants_names_are_told_as_absent_ones(gateway: Gateway, api: Api) -> None:
    await api.call("PUT", "/support/aliases/prod", json={"version": 1})
    _, key = await gateway.make_tenant("other")
    headers = {"authorization": f"Bearer {key}"}
    told = set()
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/versions"),
        ("GET", "/versions/1"),
        ("DELETE", "/versions/1"),
        ("POST", "/versions/1/retire"),
        ("PUT", "/versions/1/pin"),
        ("GET", "/aliases/prod"),
        ("POST", "/aliases/prod/rollback"),
        ("DELETE", "/aliases/prod"),
    ):
        texts = []
        for name in ("support", "nothing"):
            url = f"/v1/adapters/{name}{path}"
            response = await gateway.client.request(method, url, headers=headers)
            assert response.status_code == 404
            texts.append(response.text.replace(name, "NAME"))
        assert texts[0] == texts[1]
        told.add(response.json()["error"]["code"])
    assert told == {"model_not_found"}


async def test_models_list_aliases_beside_adapters(gateway: Gateway, api: Api) -> None:
    await api.call("PUT", "/support/aliases/prod", json={"version": 2})
    models = (await gateway.client.get("/v1/models")).json()["data"]
    assert [(m["id"], m["root"], m["parent"]) for m in models] == [
        ("tiny", "tiny", None),
        ("acme/support", "acme/support@3", "tiny"),
        ("acme/support:prod", "acme/support@2", "tiny"),
    ]
    one = (await gateway.client.get("/v1/models/acme/support:prod")).json()
    assert one == models[2]


async def test_what_was_done_is_listed_with_who_did_it(
    gateway: Gateway, api: Api, admin: httpx.AsyncClient
) -> None:
    await api.call("PUT", "/support/aliases/prod", json={"version": 2})
    await api.call("POST", "/support/versions/1/retire")
    await admin.patch("/tenants/acme", json={"limits": {"adapter_max_rank": 64}})
    mine = (await gateway.client.get("/v1/audit?limit=3")).json()
    assert [event["action"] for event in mine["data"]] == [
        "tenant.limits",
        "adapter.version.retire",
        "adapter.alias.point",
    ]
    assert mine["data"][0]["detail"] == {"adapter_max_rank": {"from": None, "to": 64}}
    assert {event["actor"] for event in mine["data"][1:]} == {api.actor}
    older = (await gateway.client.get(f"/v1/audit?after={mine['last_id']}")).json()["data"]
    assert {event["action"] for event in older} == {"adapter.publish"}
    by_subject = "/audit?tenant=acme&action=adapter&subject=acme/support&limit=100"
    assert len((await admin.get(by_subject)).json()["data"]) == 5


async def test_events_of_another_tenant_are_not_listed(gateway: Gateway, api: Api) -> None:
    _, key = await gateway.make_tenant("other")
    headers = {"authorization": f"Bearer {key}"}
    assert (await gateway.client.get("/v1/audit", headers=headers)).json()["data"] == []


async def test_an_event_that_is_none_is_no_place_to_go_on_from(gateway: Gateway) -> None:
    for after in ("x", "9" * 40, "-1"):
        assert (await gateway.client.get(f"/v1/audit?after={after}")).status_code == 400
