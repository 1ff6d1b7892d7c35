"""Text completions, and what both routes refuse."""

import json
import random
from threading import get_ident

import pytest
from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import Message
from tests.platform.conftest import Gateway, chat_body, error_of
from tests.platform.scripted_engine import says
from tests.platform.tiny_model import model_info, tokenizer_json

from loraplex.platform.api import chat
from loraplex.platform.api.bodies import parse
from loraplex.platform.api.chat_schema import ChatBody
from loraplex.platform.api.completion_schema import CompletionBody
from loraplex.platform.api.fields import (
    NO_OP_FIELDS,
    STREAM_NO_OP_FIELDS,
    UNSUPPORTED_FIELDS,
    UNSUPPORTED_MESSAGE_FIELDS,
)
from loraplex.platform.completions import CompletionRequest
from loraplex.platform.deps import MAX_INLINE_BYTES, call_of
from loraplex.platform.errors import InvalidRequest
from loraplex.platform.log import AccessLine

SECRET = "my-own-words"


def refusal(fields: dict[str, object]) -> InvalidRequest:
    """Why a chat with these fields is refused."""
    with pytest.raises(InvalidRequest) as refused:
        parse(json.dumps(chat_body(**fields)).encode(), ChatBody).to_request()
    return refused.value


def without_bos() -> bytes:
    """A tokenizer that adds no token of its own."""
    return json.dumps(json.loads(tokenizer_json()) | {"post_processor": None}).encode()


async def test_an_answer_has_the_form_that_clients_expect(gateway: Gateway) -> None:
    body = (await gateway.complete()).json()
    assert body["id"].startswith("cmpl-")
    assert (body["object"], body["model"]) == ("text_completion", "tiny")
    assert body["choices"] == [
        {"index": 0, "text": "Hello!", "logprobs": None, "finish_reason": "stop"}
    ]
    assert body["usage"]["completion_tokens"] == 3


async def test_text_an_array_of_one_text_and_its_token_ids_are_the_same_prompt(
    gateway: Gateway,
) -> None:
    await gateway.complete(prompt="hello <|im_end|>")
    ids = (await gateway.engine.submitted()).prompt
    await gateway.complete(prompt=["hello <|im_end|>"])
    await gateway.complete(prompt=list(ids))
    await gateway.complete(prompt=[list(ids)])
    for _ in range(3):
        assert (await gateway.engine.submitted()).prompt == ids


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        (["a", "b"], "unsupported_value"),
        ([[1], [2]], "unsupported_value"),
        ([1, True], "invalid_value"),
        ([1, "a"], "invalid_value"),
        ([1.5], "invalid_value"),
        (7, "invalid_value"),
        ({}, "invalid_value"),
    ],
)
def test_other_prompts_are_refused(prompt: object, code: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(json.dumps({"model": "tiny", "prompt": prompt}).encode(), CompletionBody)
    assert (refused.value.param, refused.value.code) == ("prompt", code)


@pytest.mark.parametrize("prompt", [[1, 320], [1, -1], [], ""])
async def test_prompts_that_the_model_does_not_know_are_refused(
    gateway: Gateway, prompt: object
) -> None:
    gateway.engine.model_info = model_info(tokenizer_json=without_bos())
    response = await gateway.complete(prompt=prompt)
    assert (response.status_code, error_of(response)["param"]) == (400, "prompt")


async def test_a_missing_prompt_is_named(gateway: Gateway) -> None:
    error = error_of(await gateway.complete(prompt=None))
    assert (error["param"], error["code"]) == ("prompt", "missing_required_parameter")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temperature": 2.1}, "temperature", "invalid_value"),
        ({"temperature": -0.1}, "temperature", "invalid_value"),
        ({"temperature": "1"}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"top_p": 1.1}, "top_p", "invalid_value"),
        ({"top_k": -1}, "top_k", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": True}, "max_tokens", "invalid_value"),
        ({"max_tokens": 1.5}, "max_tokens", "invalid_value"),
        ({"seed": 1 << 63}, "seed", "invalid_value"),
        ({"seed": 10**300}, "seed", "invalid_value"),
        ({"stop": ["a"] * 5}, "stop", "invalid_value"),
        ({"stop": ["a", ""]}, "stop", "invalid_value"),
        ({"stop": [1]}, "stop", "invalid_value"),
        ({"stop": "x" * 513}, "stop", "invalid_value"),
        ({"stream": "yes"}, "stream", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown_parameter"),
        ({"model": None}, "model", "missing_required_parameter"),
        ({"model": "x" * 257}, "model", "invalid_value"),
        ({"colour": "red"}, "colour", "unknown_parameter"),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": "hi"}, "messages", "invalid_value"),
        ({"messages": ["hi"]}, "messages[0]", "invalid_value"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "x"}]},
            "messages[1].role",
            "invalid_value",
        ),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0]",
            "unsupported_value",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "invalid_value",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "name": "Bob"}]},
            "messages[0].name",
            "unsupported_value",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "mood": 1}]},
            "messages[0].mood",
            "unknown_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "zzz": 1}]}]},
            "messages[0].content[0].zzz",
            "unknown_parameter",
        ),
        ({"messages": [{"role": "user", "content": "x"}] * 4097}, "messages", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 1025}]},
            "messages[0].content",
            "invalid_value",
        ),
    ],
)
def test_a_wrong_field_is_named_with_its_path(
    fields: dict[str, object], param: str, code: str
) -> None:
    error = refusal(fields)
    assert (error.param, error.code) == (param, code)
    assert param in str(error)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [0] * 4000},
        {"messages": [{"role": "user", "content": "x", **dict.fromkeys(map(str, range(999)), 1)}]},
        dict.fromkeys(map(str, range(999)), 1),
        {"stream_options": dict.fromkeys(map(str, range(999)), 1)},
    ],
)
def test_of_many_faults_one_is_noted_since_each_costs_time_and_memory(
    fields: dict[str, object],
) -> None:
    with pytest.raises(ValidationError) as refused:
        ChatBody.model_validate(chat_body(**fields))
    assert refused.value.error_count() == 1


@pytest.mark.parametrize("num_bytes", [MAX_INLINE_BYTES, MAX_INLINE_BYTES + 1])
async def test_a_large_body_is_checked_beside_the_event_loop(num_bytes: int) -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"x" * num_bytes}

    checked_by: list[int] = []
    asked = chat.request_of(json.dumps(chat_body()).encode())

    def check(_: bytes) -> CompletionRequest:
        checked_by.append(get_ident())
        return asked

    scope = {"type": "http", "headers": [], "loraplex.line": AccessLine("req_1", 0.0)}
    call = call_of(Request(scope, receive), check)
    await call.read()
    assert (checked_by == [get_ident()]) == (num_bytes <= MAX_INLINE_BYTES)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": []}, "messages: needs 1 or more."),
        ({"top_p": 0}, "top_p: must be above 0, not 0."),
        ({"n": "x"}, 'n: must be a whole number, not "x".'),
        ({"stream": 1}, "stream: must be true or false, not 1."),
        ({"model": 7}, "model: must be a text, not 7."),
        ({"model": ""}, 'model: needs 1 or more characters, not "".'),
        ({"tools": [1]}, "tools is not supported; leave tools out."),
        (
            {"messages": [{"role": "x", "content": "a"}]},
            "messages[0].role: must be 'system', 'developer', 'user' or 'assistant', not \"x\".",
        ),
    ],
)
def test_a_refusal_speaks_of_json_and_not_of_python(
    fields: dict[str, object], message: str
) -> None:
    assert str(refusal(fields)) == message


async def test_a_refusal_has_openais_form_and_costs_nothing(gateway: Gateway) -> None:
    response = await gateway.chat(temperature=3)
    assert response.status_code == 400
    assert error_of(response) == {
        "message": "temperature: must be at most 2, not 3.",
        "type": "invalid_request_error",
        "param": "temperature",
        "code": "invalid_value",
    }
    assert await gateway.usage() == []
    await gateway.assert_all_settled()


@pytest.mark.parametrize("field", sorted(UNSUPPORTED_FIELDS))
def test_what_would_change_the_output_and_is_not_supported_is_refused_by_name(field: str) -> None:
    error = refusal({field: {"some": "thing"}})
    assert (error.param, error.code) == (field, "unsupported_value")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("modalities", ["text", "audio"]),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("echo", True),
        ("echo", 0),
        ("best_of", 2),
    ],
)
def test_only_the_values_of_no_effect_are_taken(field: str, value: object) -> None:
    assert refusal({field: value}).param == field


@pytest.mark.parametrize(
    ("asked", "tier"),
    [(None, "default"), ("auto", "default"), ("priority", "priority"), ("flex", "flex")],
)
async def test_tier_and_program_reach_the_engine(
    gateway: Gateway, asked: str | None, tier: str
) -> None:
    headers = {"x-loraplex-program": "p1"}
    body = chat_body(service_tier=asked)
    await gateway.client.post("/v1/chat/completions", json=body, headers=headers)
    submit = await gateway.engine.submitted()
    assert (submit.service_tier, submit.program) == (tier, "p1")


def test_a_tier_that_there_is_not_is_refused() -> None:
    assert refusal({"service_tier": "scale"}).param == "service_tier"


@pytest.mark.parametrize("program", ["x" * 129, "caf\u00e9"])
async def test_a_program_that_is_no_short_ascii_is_refused(gateway: Gateway, program: str) -> None:
    response = await gateway.client.post(
        "/v1/chat/completions",
        json=chat_body(),
        headers={"x-loraplex-program": program.encode("latin-1")},
    )
    assert (response.status_code, error_of(response)["param"]) == (400, "x-loraplex-program")


@pytest.mark.parametrize("fields", [UNSUPPORTED_FIELDS, UNSUPPORTED_MESSAGE_FIELDS])
def test_null_and_values_of_no_effect_are_as_absent(
    fields: dict[str, tuple[object, ...]],
) -> None:
    absent = parse(json.dumps(chat_body()).encode(), ChatBody)
    for field, defaults in fields.items():
        for value in (None, *defaults):
            if fields is UNSUPPORTED_FIELDS:
                body = chat_body(**{field: value})
            else:
                body = chat_body(messages=[{"role": "user", "content": "hello", field: value}])
            assert parse(json.dumps(body).encode(), ChatBody) == absent


def test_fields_without_effect_are_taken_with_any_value() -> None:
    absent = parse(json.dumps(chat_body(stream=True)).encode(), ChatBody)
    for value in (None, 0, "x", [1], {"a": {}}):
        fields = dict.fromkeys(NO_OP_FIELDS, value)
        assert parse(json.dumps(chat_body(stream=True, **fields)).encode(), ChatBody) == absent
        options = dict.fromkeys(STREAM_NO_OP_FIELDS, value)
        body = chat_body(stream=True, stream_options=options)
        assert parse(json.dumps(body).encode(), ChatBody).stream_usage() == "none"


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": SECRET, "mood": SECRET}]},
        {"messages": [{"role": "user", "content": {"text": SECRET}}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": [SECRET]}]}]},
        {"messages": SECRET},
        {"stop": [SECRET, ""]},
        {"suffix": SECRET},
        {"prediction": SECRET, "n": 0},
        {"tools": [SECRET]},
    ],
)
def test_what_a_person_typed_is_never_repeated_in_an_error(fields: dict[str, object]) -> None:
    told = str(refusal(fields))
    assert SECRET not in told
    assert len(told) < 300


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"7",
        b"null",
        b'"text"',
        b"\xff\xfe{}",
        b'{"model": "\xff"}',
        b'{"model": "\\ud800"}',
        b'{"temperature": NaN}',
        b'{"temperature": -Infinity}',
        b"[" * 50_000,
        b'{"a":' * 50_000,
        b'{"n": ' + b"9" * 50_000 + b"}",
        b"\x00" * 100,
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_not_a_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(body, ChatBody)
    assert refused.value.code == "invalid_json"


def test_infinite_numbers_are_refused() -> None:
    body = json.dumps(chat_body()).replace('"max_tokens": 8', '"temperature": 1e999')
    with pytest.raises(InvalidRequest, match="temperature"):
        parse(body.encode(), ChatBody)


async def test_numbers_beyond_all_bounds_are_refused(gateway: Gateway) -> None:
    response = await gateway.chat(max_tokens=10**300)
    assert error_of(response)["code"] == "context_length_exceeded"


async def test_no_mutation_of_a_valid_body_makes_the_server_fail(gateway: Gateway) -> None:
    gateway.engine.answer = says("x")
    rng = random.Random(1)
    pool: list[object] = [None, True, -1, 0, 1.5, 1e308, "", "x", [], {}, [[]], [{}], {"a": []}]
    valid = chat_body(stop=["a"], stream_options=None, seed=1, top_p=1, user="u")
    for _ in range(100):
        body = json.loads(json.dumps(valid))
        for _ in range(rng.randint(1, 3)):
            target = body["messages"][0] if rng.random() < 0.3 and body["messages"] else body
            if isinstance(target, dict):
                target[rng.choice(sorted(target) or ["x"])] = rng.choice(pool)
            if not isinstance(body.get("messages"), list) or not body["messages"]:
                break
        response = await gateway.client.post("/v1/chat/completions", json=body)
        assert response.status_code in {200, 400, 404}, (body, response.text)
    await gateway.assert_all_settled()
