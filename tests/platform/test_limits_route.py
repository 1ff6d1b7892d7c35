"""What a key sees of its limits, and what answers tell of them."""

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from tests.platform.conftest import Gateway, error_of

from loraplex.engine.errors import EngineOverloaded


async def limits_of(gateway: Gateway, query: str = "") -> dict[str, Any]:
    reply = await gateway.client.get(f"/v1/limits{query}")
    assert reply.status_code == 200
    return {limit["name"]: limit for limit in reply.json()["data"]}


async def test_a_key_sees_each_limit_of_every_scope_and_what_is_really_left(
    gateway: Gateway,
) -> None:
    await gateway.publish("support", "d1")
    await gateway.put_limit("project", "tokens_per_minute", 600, burst=300)
    used = (await gateway.chat()).json()["usage"]["total_tokens"]
    await gateway.services.open_requests.drain(10)
    await gateway.put_limit("tenant", "tokens_per_month", 100)
    await gateway.put_limit("key", "tokens_per_month", 1000)
    await gateway.put_limit("adapter", "concurrency", 4, adapter="support", mode="shadow")
    seen = await limits_of(gateway)
    assert seen.keys() == {
        *("tenant/requests_per_minute", "tenant/tokens_per_minute", "tenant/concurrency"),
        *("tenant/tokens_per_month", "key/tokens_per_month", "project/tokens_per_minute"),
    }
    budget = seen["key/tokens_per_month"]
    assert (budget["used"], budget["remaining"]) == (used, 1000 - used)
    assert budget["parent_remaining"] == budget["available"] == 100 - used
    assert datetime.fromisoformat(budget["resets_at"]) == datetime(2026, 12, 1, tzinfo=UTC)
    assert budget["reset_s"] == 24 * 3600
    rate = seen["project/tokens_per_minute"]
    assert (rate["value"], rate["burst"], rate["mode"]) == (600, 300, "enforce")
    assert rate["remaining"] == 300 - rate["used"]
    gauge = seen["tenant/concurrency"]
    assert (gauge["used"], gauge["resets_at"], gauge["parent_remaining"]) == (0, None, None)
    of_adapter = (await limits_of(gateway, "?model=acme/support"))["adapter/concurrency"]
    assert (of_adapter["mode"], of_adapter["parent_remaining"]) == ("shadow", gauge["remaining"])


async def test_a_model_that_there_is_not_has_no_limits(gateway: Gateway) -> None:
    reply = await gateway.client.get("/v1/limits?model=acme/none")
    assert (reply.status_code, error_of(reply)["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("stream", [True, False])
async def test_answers_tell_how_limits_stood_at_admission_and_which_shadows_spoke(
    gateway: Gateway, *, stream: bool
) -> None:
    await gateway.put_limit("key", "requests_per_minute", 10)
    await gateway.put_limit("project", "tokens_per_minute", 1, mode="shadow")
    headers = (await gateway.chat(stream=stream)).headers
    assert headers["x-ratelimit-limit-requests"] == "10"
    assert headers["x-ratelimit-remaining-requests"] == "9"
    assert headers["x-ratelimit-reset-requests"] == "6s"
    assert '"key/requests_per_minute";q=10;w=60;qu="requests"' in headers["ratelimit-policy"]
    assert '"key/requests_per_minute";r=9;t=6' in headers["ratelimit"]
    assert headers["x-loraplex-shadowed-limits"] == "project/tokens_per_minute"
    assert "project" not in headers["ratelimit"]


async def test_errors_after_admission_tell_of_limits_too(gateway: Gateway) -> None:
    overloaded = EngineOverloaded("full", 1.0)
    gateway.engine.answer = lambda engine, i: engine.reject(i, overloaded)
    reply = await gateway.chat()
    assert reply.status_code == 503
    assert reply.headers["x-ratelimit-remaining-requests"] == "9999"
    assert reply.headers["x-loraplex-model"] == "tiny"
    assert "x-loraplex-limit-policy" not in reply.headers


async def test_a_refusal_names_its_limit_and_tells_how_all_stand(gateway: Gateway) -> None:
    await gateway.put_limit("key", "requests_per_minute", 1)
    assert (await gateway.chat()).status_code == 200
    reply = await gateway.chat()
    assert (reply.status_code, error_of(reply)["code"]) == (429, "rate_limit_exceeded")
    assert error_of(reply)["message"].startswith("The key's limit of 1 requests per minute")
    assert reply.headers["x-loraplex-limit-policy"] == "key/requests_per_minute"
    assert reply.headers["x-ratelimit-remaining-requests"] == "0"
    assert '"tenant/requests_per_minute";r=' in reply.headers["ratelimit"]


async def test_operators_see_the_same_of_any_tenant(
    gateway: Gateway, admin: httpx.AsyncClient
) -> None:
    await gateway.put_limit("key", "requests_per_minute", 10)
    await gateway.chat()
    path = "/tenants/acme/limits/standings"
    key_id = gateway.key.split("_")[1]
    whole = (await admin.get(path)).json()
    assert [limit["scope"] for limit in whole["data"]] == ["tenant"] * 3
    assert whole["time_zone"] == "UTC"
    of_key = (await admin.get(path, params={"key_id": key_id})).json()["data"]
    seen = {limit["name"]: limit for limit in of_key}
    assert seen["key/requests_per_minute"]["remaining"] == 9
    assert seen["key/requests_per_minute"]["parent_remaining"] >= 9999
    other, _ = await gateway.make_tenant("other")
    foreign = await admin.get(f"/tenants/{other.id}/limits/standings", params={"key_id": key_id})
    assert foreign.status_code == 404


async def test_a_key_learns_nothing_of_models_that_it_may_not_call(
    gateway: Gateway, admin: httpx.AsyncClient
) -> None:
    body = {"label": "narrow", "models": ["acme/mine"]}
    made = (await admin.post("/tenants/acme/keys", json=body)).json()
    headers = {"authorization": f"Bearer {made['key']}"}
    reply = await gateway.client.get("/v1/limits?model=tiny", headers=headers)
    assert (reply.status_code, error_of(reply)["code"]) == (404, "model_not_found")
