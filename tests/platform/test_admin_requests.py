"""Why a request waits, as an operator asks it."""

import asyncio

import httpx
from tests.platform.conftest import Gateway, chat_body


async def test_an_operator_sees_why_an_open_request_waits_and_why_one_waited(
    gateway: Gateway, admin: httpx.AsyncClient
) -> None:
    gateway.engine.answer = None
    headers = {"x-loraplex-program": "agent 7"}
    body = chat_body(service_tier="priority")
    asking = asyncio.create_task(
        gateway.client.post("/v1/chat/completions", json=body, headers=headers)
    )
    submit = await gateway.engine.submitted()
    path = f"/requests/{submit.request_id}/why"
    known = {
        "object": "request.why",
        "id": submit.request_id,
        "tenant": gateway.tenant.id,
        "model": "tiny",
        "service_tier": "priority",
        "program": "agent 7",
    }
    waiting = {"state": "waiting", "waits_for": "share", "waited_ms": {"share": 2.5}}
    assert (await admin.get(path)).json() == known | waiting | {
        "finish_reason": None,
        "queue_ms": None,
    }
    gateway.engine.emit(submit.request_id, "x")
    gateway.engine.finish(submit.request_id, "stop")
    await asking
    await gateway.assert_all_settled()
    ended = {"state": "ended", "waits_for": None, "waited_ms": {"kv": 1.5}}
    assert (await admin.get(path)).json() == known | ended | {
        "finish_reason": "stop",
        "queue_ms": 1.5,
    }


async def test_a_request_that_is_not_known_is_not_found(admin: httpx.AsyncClient) -> None:
    response = await admin.get("/requests/nobody/why")
    assert (response.status_code, response.json()["code"]) == (404, "request_not_found")
