"""Streamed answers, byte by byte and with the client that users have."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionChunk
from tests.platform.conftest import Gateway, chat_body, error_of
from tests.platform.scripted_engine import says

from loraplex.engine.errors import EngineOverloaded, RequestRefused


@pytest.fixture
async def client(gateway: Gateway, server: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        api_key=gateway.key, base_url=f"{server}/v1", max_retries=0
    ) as client:
        yield client


def events_of(response: httpx.Response) -> list[Any]:
    """The events of a finished stream, and what ends it."""
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


async def test_a_stream_is_role_texts_reason_done(gateway: Gateway) -> None:
    response = await gateway.chat(stream=True)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert "x-ratelimit-remaining-tokens" in response.headers
    events = events_of(response)
    assert [event["choices"][0]["delta"] for event in events] == [
        {"role": "assistant", "content": ""},
        {"content": "Hello!"},
        {},
    ]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, "stop"]
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    for field in ("id", "created", "model", "system_fingerprint"):
        assert len({event[field] for event in events}) == 1
    assert not any("usage" in event for event in events)
    for event in events:
        ChatCompletionChunk.model_validate(event, strict=True)


async def test_usage_comes_last_and_only_if_it_was_asked_for(gateway: Gateway) -> None:
    options = {"include_usage": True}
    *events, last = events_of(await gateway.chat(stream=True, stream_options=options))
    assert {event["usage"] for event in events} == {None}
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3
    ChatCompletionChunk.model_validate(last, strict=True)


async def test_text_completions_stream_their_own_form(gateway: Gateway) -> None:
    events = events_of(await gateway.complete(stream=True, stream_options={"include_usage": True}))
    assert [e["choices"][0]["text"] for e in events[:-1]] == ["Hello!", ""]
    assert [e["choices"][0]["finish_reason"] for e in events[:-1]] == [None, "stop"]
    assert {event["object"] for event in events} == {"text_completion"}
    assert events[-1]["choices"] == []


@pytest.mark.parametrize("text", ['"', "\n", "\r\n\r\n", "data: [DONE]\n\n", "\x00", " ", "🦊"])
async def test_no_text_can_break_the_framing(gateway: Gateway, text: str) -> None:
    gateway.engine.answer = says(text)
    events = events_of(await gateway.chat(stream=True))
    assert events[1]["choices"][0]["delta"]["content"] == text


async def test_text_that_was_held_back_comes_with_the_end(gateway: Gateway) -> None:
    gateway.engine.answer = lambda engine, i: engine.finish(i, "length", text="tail")
    events = events_of(await gateway.chat(stream=True))
    assert [e["choices"][0]["delta"].get("content") for e in events] == ["", "tail", None]
    assert events[-1]["choices"][0]["finish_reason"] == "length"


async def test_empty_texts_make_no_events(gateway: Gateway) -> None:
    gateway.engine.answer = says("", "", "x", "")
    assert len(events_of(await gateway.chat(stream=True))) == 3


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RequestRefused("no such adapter", "model"), 400, "invalid_value"),
        (EngineOverloaded("the queue is full", 0.25), 503, "server_is_overloaded"),
    ],
)
async def test_errors_before_the_first_token_are_http_errors(
    gateway: Gateway, error: RequestRefused | EngineOverloaded, status: int, code: str
) -> None:
    gateway.engine.answer = lambda engine, i: engine.reject(i, error)
    response = await gateway.chat(stream=True)
    assert (response.status_code, error_of(response)["code"]) == (status, code)
    assert await gateway.usage() == []
    await gateway.assert_all_settled()


async def test_an_error_after_the_first_token_is_the_last_event(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    gateway.engine.answer = None
    request = asyncio.create_task(
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x"}], stream=True
        )
    )
    request_id = (await gateway.engine.submitted()).request_id
    gateway.engine.emit(request_id, "x")
    stream = await request
    gateway.engine.fail(request_id)
    with pytest.raises(openai.APIError) as failed:
        async for _ in stream:
            pass
    assert failed.value.code == "non_finite_logits"
    (row,) = await gateway.usage()
    assert (row.finish_reason, row.completion_tokens) == ("error", 1)
    await gateway.assert_all_settled()


async def test_the_error_event_ends_the_stream_without_done(gateway: Gateway) -> None:
    def answer(engine: Any, request_id: str) -> None:
        engine.emit(request_id, "x")
        engine.fail(request_id)

    gateway.engine.answer = answer
    text = (await gateway.chat(stream=True)).text
    last = text.split("\n\n")[-2]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "non_finite_logits"
    assert "[DONE]" not in text


async def test_the_client_that_users_have_streams_and_completes(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    await gateway.publish("support", "d1")
    stream = await client.chat.completions.create(
        model="acme/support",
        messages=[{"role": "user", "content": "x"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    texts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == "Hello!"
    assert chunks[-1].usage is not None
    whole = await client.chat.completions.create(
        model="acme/support", messages=[{"role": "user", "content": "x"}]
    )
    assert whole.choices[0].message.content == "Hello!"
    text = await client.completions.create(model="tiny", prompt="x")
    assert text.choices[0].text == "Hello!"
    assert [model.id async for model in client.models.list()] == ["tiny", "acme/support"]
    assert (await client.models.retrieve("acme/support")).id == "acme/support"


async def test_events_that_wait_for_a_request_are_one_write(gateway: Gateway, server: str) -> None:
    gateway.engine.answer = says(*"abcdefgh")
    async with (
        httpx.AsyncClient(headers=gateway.headers) as client,
        client.stream(
            "POST", f"{server}/v1/chat/completions", json=chat_body(stream=True)
        ) as response,
    ):
        text = (await response.aread()).decode()
    # Role and all texts in one event each, then reason and end.
    assert text.count("data: ") == 4


async def test_usage_comes_with_each_event_for_those_who_ask(gateway: Gateway) -> None:
    gateway.engine.answer = says("a", "b", "c")
    asked = {"include_usage": True, "continuous_usage_stats": True}
    for route in (gateway.chat, gateway.complete):
        events = events_of(await route(stream=True, stream_options=asked))
        usages = [event["usage"] for event in events]
        counts = [usage["completion_tokens"] for usage in usages]
        assert counts == sorted(counts)
        assert counts[-1] == 3
        assert {usage["prompt_tokens"] for usage in usages} == {usages[-1]["prompt_tokens"]}
        assert all(u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"] for u in usages)
        assert events[-1]["choices"] == []


async def test_usage_with_each_event_needs_usage_at_all(gateway: Gateway) -> None:
    reply = await gateway.chat(stream=True, stream_options={"continuous_usage_stats": True})
    error = error_of(reply)
    assert (reply.status_code, error["param"]) == (400, "stream_options.continuous_usage_stats")


@pytest.mark.parametrize(
    ("asked", "told"), [("auto", "default"), ("priority", "priority"), ("flex", "flex")]
)
async def test_an_answer_names_the_tier_that_it_was_served_in(
    gateway: Gateway, asked: str, told: str
) -> None:
    assert (await gateway.chat(service_tier=asked)).json()["service_tier"] == told
    events = events_of(await gateway.chat(service_tier=asked, stream=True))
    assert {event["service_tier"] for event in events} == {told}
