"""Tenants say which adapters they will use; the worker hears of it, and nobody of another's."""

import asyncio
from datetime import timedelta

import pytest
from msgspec import structs
from tests.platform.conftest import NOW, Gateway, error_of
from tests.platform.test_adapter_api import Api, api  # noqa: F401  a fixture
from tests.platform.test_permissions import key_of, send

from loraplex.engine.residency_protocol import AdapterRow, Warm
from loraplex.tenants import audit, directory
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.key_changes import NewKey
from loraplex.tenants.key_scopes import KeyScopes


@pytest.fixture
def hints(gateway: Gateway) -> list[Warm]:
    return gateway.engine.hints


async def test_a_hint_names_the_version_that_a_request_would_run_on(
    api: Api,  # noqa: F811  a fixture
    gateway: Gateway,
    hints: list[Warm],
) -> None:
    await api.call("PUT", "/support/aliases/prod", json={"version": 2})
    for name, version in (("support", 3), ("support@1", 1), ("support:prod", 2)):
        status, hint = await api.call("POST", f"/{name}/warm")
        assert status == 202
        assert hint == {
            "object": "adapter.hint",
            "adapter": "acme/support",
            "version": version,
            "digest": f"d{version}",
            "tier": "store",
            "expires_at": (NOW + timedelta(seconds=60)).isoformat().replace("+00:00", "Z"),
        }
        assert hints[-1] == Warm(gateway.tenant.id, f"d{version}", 60.0)


async def test_a_hint_follows_the_canary_that_its_sticky_text_would(
    api: Api,  # noqa: F811  a fixture
    gateway: Gateway,
) -> None:
    await api.call("PUT", "/support/aliases/prod", json={"version": 1})
    await api.call("PUT", "/support/aliases/prod/canary", json={"version": 3, "percent": 50})
    seen = set()
    for number in range(12):
        sticky = {"x-loraplex-sticky": f"user-{number}"}
        _, hint = await api.call("POST", "/support:prod/warm", headers=sticky)
        body = {"model": "acme/support:prod", "prompt": "hello", "max_tokens": 8}
        await gateway.client.post("/v1/completions", json=body, headers=sticky)
        assert (await gateway.engine.submitted()).adapter == hint["digest"]
        seen.add(hint["digest"])
    assert seen == {"d1", "d3"}


async def test_a_hint_tells_where_the_adapter_is_if_the_worker_does(
    api: Api,  # noqa: F811  a fixture
    gateway: Gateway,
) -> None:
    row = AdapterRow(
        tenant=gateway.tenant.id,
        adapter="d3",
        tier="loading",
        why="prefetched",
        device_bytes=1,
        host_bytes=1,
        leases=0,
        num_waiting=0,
        loaded=0.0,
        is_pinned=False,
        idle_s=None,
    )
    other = structs.replace(row, tenant="somebody")
    gateway.engine.report = structs.replace(gateway.engine.report, adapters=(other, row))
    assert (await api.call("POST", "/support/warm"))[1]["tier"] == "loading"
    gateway.engine.report = structs.replace(gateway.engine.report, adapters=(other,))
    assert (await api.call("POST", "/support/warm"))[1]["tier"] == "store"


async def test_a_worker_that_does_not_tell_leaves_the_tier_open(
    api: Api,  # noqa: F811  a fixture
    gateway: Gateway,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silent(*_: str) -> None:
        return None

    monkeypatch.setattr(gateway.engine, "tier", silent)
    status, hint = await api.call("POST", "/support/warm")
    assert (status, hint["tier"]) == (202, None)


@pytest.mark.parametrize("ttl", [9, 601, 60.5, "60", None, True])
async def test_times_out_of_bounds_are_refused(
    api: Api,  # noqa: F811  a fixture
    hints: list[Warm],
    ttl: object,
) -> None:
    refused = await api.code("POST", "/support/warm", json={"ttl_s": ttl})
    assert refused == (400, "invalid_value")
    assert hints == []


async def test_what_is_unknown_or_retired_is_404_and_without_a_worker_503(
    api: Api,  # noqa: F811  a fixture
    gateway: Gateway,
    hints: list[Warm],
) -> None:
    await api.call("POST", "/support/versions/2/retire")
    for name in ("nothing", "support@9", "support@2", "support:nothing", "support@x", "@"):
        assert await api.code("POST", f"/{name}/warm") == (404, "model_not_found"), name
    assert hints == []
    gateway.engine.die()
    assert await api.code("POST", "/support/warm") == (503, "engine_unavailable")


async def test_a_tenant_warms_its_own_adapters_alone(gateway: Gateway, hints: list[Warm]) -> None:
    globex, key = await gateway.make_tenant("globex")
    await gateway.publish("support", "d-acme")
    await gateway.publish("secret", "d-secret", globex)
    await gateway.publish("support", "d-globex", globex)
    theirs = await send(gateway, key, "POST", "/v1/adapters/support/warm")
    mine = await send(gateway, gateway.key, "POST", "/v1/adapters/support/warm")
    absent = await send(gateway, gateway.key, "POST", "/v1/adapters/secret/warm")
    assert (theirs.json()["digest"], mine.json()["digest"]) == ("d-globex", "d-acme")
    assert absent.status_code == 404
    assert [(hint.tenant, hint.adapter) for hint in hints] == [
        (globex.id, "d-globex"),
        (gateway.tenant.id, "d-acme"),
    ]


async def test_whoever_may_run_requests_on_it_may_warm_it(
    gateway: Gateway, hints: list[Warm]
) -> None:
    await gateway.publish("a", "da")
    await gateway.publish("b", "db")
    for scopes, status, code in (
        (KeyScopes("developer"), 202, None),
        (KeyScopes(permissions=("inference",)), 202, None),
        (KeyScopes(models=("acme/a",)), 202, None),
        (KeyScopes(models=("acme/b",)), 403, "model_not_allowed"),
        (KeyScopes("read_only"), 403, "insufficient_scope"),
        (KeyScopes(permissions=("adapters.write",)), 403, "insufficient_scope"),
    ):
        _, key = await key_of(gateway, gateway.tenant, NewKey(scopes=scopes))
        response = await send(gateway, key, "POST", "/v1/adapters/a/warm")
        assert response.status_code == status, scopes
        if code is not None:
            assert error_of(response)["code"] == code
    assert len(hints) == 3


async def test_a_suspended_tenant_warms_nothing(gateway: Gateway, hints: list[Warm]) -> None:
    await gateway.publish("a", "da")
    async with gateway.resources.database.session() as session:
        await directory.suspend(session, Act(CLI, NOW), gateway.tenant.id)
    response = await gateway.client.post("/v1/adapters/a/warm")
    assert (response.status_code, error_of(response)["code"]) == (403, "tenant_suspended")
    assert hints == []


async def test_hints_are_neither_charged_nor_told_to_the_audit_log(
    api: Api,  # noqa: F811  a fixture
    gateway: Gateway,
) -> None:
    async with gateway.resources.database.reader() as session:
        before = await audit.find_events(session, audit.AuditFilter(), 100)
    assert (await api.call("POST", "/support/warm"))[0] == 202
    async with gateway.resources.database.reader() as session:
        after = await audit.find_events(session, audit.AuditFilter(), 100)
    assert before == after
    assert await gateway.usage() == []
    await gateway.assert_all_settled()


async def test_of_calls_at_once_no_more_than_the_bound_are_taken(
    gateway: Gateway, hints: list[Warm]
) -> None:
    globex, key = await gateway.make_tenant("globex")
    await gateway.publish("a", "their-a", globex)
    names = [f"a{number}" for number in range(12)]
    for name in names:
        await gateway.publish(name, f"digest-{name}")
    urls = [f"/v1/adapters/{name}/warm" for name in (*names, *names)]
    answers = await asyncio.gather(*(gateway.client.post(url) for url in urls))
    taken = {url for url, answer in zip(urls, answers, strict=True) if answer.status_code == 202}
    assert len(taken) == 8
    assert len({hint.adapter for hint in hints}) == 8
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert error_of(refused)["code"] == "too_many_hints"
    assert refused.headers["retry-after"] == "60"
    again = await gateway.client.post(taken.pop(), json={"ttl_s": 300})
    assert again.status_code == 202
    assert (await send(gateway, key, "POST", "/v1/adapters/a/warm")).status_code == 202


async def test_the_hint_of_a_version_that_is_gone_leaves_its_place_to_another(
    gateway: Gateway,
) -> None:
    names = [f"a{number}" for number in range(9)]
    for name in names:
        await gateway.publish(name, f"digest-{name}")
    answers = [await gateway.client.post(f"/v1/adapters/{name}/warm") for name in names]
    assert [answer.status_code for answer in answers] == [202] * 8 + [429]
    assert (await gateway.client.delete("/v1/adapters/a3")).is_success
    await gateway.services.adapter_deletions.sweep()
    assert (await gateway.client.post("/v1/adapters/a8/warm")).status_code == 202
