"""Options of sampling from the fields of a request to the engine and back into the answer."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tests.platform.conftest import Gateway, chat_body, error_of
from tests.platform.scripted_engine import ScriptedEngine

from loraplex.engine.protocol import Alternative, Sampling, TokenLogprob
from loraplex.platform.api.bodies import parse
from loraplex.platform.api.chat_schema import ChatBody
from loraplex.platform.api.completion_schema import CompletionBody
from loraplex.platform.errors import InvalidRequest

OPTIONS: dict[str, Any] = {
    "n": 3,
    "temperature": 0.5,
    "top_p": 0.9,
    "presence_penalty": -2,
    "frequency_penalty": 1.5,
    "logit_bias": {"5": 100, "0": -0.5},
    "seed": 7,
    "stop": ["x"],
}
EXTENSIONS: dict[str, Any] = {
    "top_k": 40,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "stop_token_ids": [9, 3],
    "ignore_eos": True,
    "min_tokens": 4,
}
REACHED = Sampling(
    max_tokens=8,
    n=3,
    temperature=0.5,
    top_p=0.9,
    top_k=40,
    min_p=0.05,
    repetition_penalty=1.1,
    presence_penalty=-2,
    frequency_penalty=1.5,
    logit_bias=((5, 100.0), (0, -0.5)),
    seed=7,
    stop=("x",),
    stop_token_ids=(9, 3),
    ignore_eos=True,
    min_tokens=4,
)
E_ACUTE = (
    TokenLogprob(
        Alternative("\ufffd", b"\xc3", -0.5),
        1,
        (Alternative("\ufffd", b"\xc3", -0.5), Alternative("<|im_end|>", None, -float("inf"))),
    ),
    TokenLogprob(Alternative("\ufffd", b"\xa9", -0.25), 1, ()),
)
LETTER = TokenLogprob(Alternative("H", b"H", -1.5), 0, (Alternative("h", b"h", -0.75),))


@pytest.fixture
async def client(gateway: Gateway, server: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        api_key=gateway.key, base_url=f"{server}/v1", max_retries=0
    ) as client:
        yield client


def three_choices(engine: ScriptedEngine, request_id: str) -> None:
    engine.emit(request_id, "a", "b", choice=0)
    engine.emit(request_id, "c", choice=2)
    engine.end(request_id, 0, "length")
    engine.emit(request_id, "d", choice=1)
    engine.end(request_id, 2, "stop")
    engine.finish(request_id, "stop")


def with_logprobs(engine: ScriptedEngine, request_id: str) -> None:
    engine.emit(request_id, "H", logprobs=[LETTER])
    engine.emit(request_id, "é", logprobs=E_ACUTE)
    engine.finish(request_id)


@pytest.mark.parametrize("route", ["chat", "completions"])
async def test_what_users_of_the_openai_client_set_reaches_the_engine(
    gateway: Gateway, client: openai.AsyncOpenAI, route: str
) -> None:
    gateway.engine.answer = three_choices
    if route == "chat":
        await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "x"}],
            max_tokens=8,
            extra_body=EXTENSIONS,
            **OPTIONS,
        )
    else:
        await client.completions.create(
            model="tiny", prompt="x", max_tokens=8, extra_body=EXTENSIONS, **OPTIONS
        )
    assert (await gateway.engine.submitted()).sampling == REACHED


async def test_what_is_not_set_changes_nothing(gateway: Gateway) -> None:
    await gateway.chat(seed=1)
    await gateway.complete(seed=1)
    for _ in range(2):
        sampling = (await gateway.engine.submitted()).sampling
        assert sampling == Sampling(max_tokens=8, seed=1)


@pytest.mark.parametrize(
    ("chat", "text", "reached"),
    [
        ({}, {}, None),
        ({"logprobs": False, "top_logprobs": 0}, {"logprobs": None}, None),
        ({"logprobs": True}, {"logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 5}, {"logprobs": 5}, 5),
    ],
)
async def test_each_route_asks_for_log_probabilities_in_its_own_way(
    gateway: Gateway, chat: dict[str, Any], text: dict[str, Any], reached: int | None
) -> None:
    await gateway.chat(**chat)
    await gateway.complete(**text)
    for _ in range(2):
        assert (await gateway.engine.submitted()).sampling.top_logprobs == reached


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("n", 0, "at least 1"),
        ("n", True, "whole number"),
        ("n", 1.5, "whole number"),
        ("presence_penalty", 2.01, "at most 2"),
        ("presence_penalty", -2.01, "at least -2"),
        ("frequency_penalty", 3, "at most 2"),
        ("frequency_penalty", "1", "number"),
        ("repetition_penalty", 0, "at least 0.01"),
        ("repetition_penalty", 11, "at most 10"),
        ("min_p", 1.1, "at most 1"),
        ("min_p", -0.1, "at least 0"),
        ("min_tokens", -1, "at least 0"),
        ("ignore_eos", 1, "true or false"),
        ("stop_token_ids", [1, True], "token ids"),
        ("stop_token_ids", [-1], "token ids"),
        ("stop_token_ids", 5, "token ids"),
        ("stop_token_ids", [1] * 65, "at most 64"),
        ("logit_bias", [1], "object"),
        ("logit_bias", {"5": 100.5}, "-100 to 100"),
        ("logit_bias", {"5": -101}, "-100 to 100"),
        ("logit_bias", {"5": True}, "-100 to 100"),
        ("logit_bias", {"5": "1"}, "-100 to 100"),
        ("logit_bias", {"hello": 1}, "'hello' is not a token id"),
        ("logit_bias", {"-1": 1}, "not a token id"),
        ("logit_bias", {"05": 1}, "not a token id"),
        ("logit_bias", {"9" * 5000: 1}, "not a token id"),
        ("logit_bias", {"²": 1}, "not a token id"),
        ("logit_bias", {str(i): 1 for i in range(1025)}, "at most 1024"),
        ("top_logprobs", 21, "at most 20"),
        ("top_logprobs", -1, "at least 0"),
        ("top_logprobs", 1, "needs logprobs=true"),
        ("logprobs", 1, "true or false"),
    ],
)
def test_a_value_out_of_range_is_refused_with_field_and_range(
    field: str, value: object, told: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(json.dumps(chat_body(**{field: value})).encode(), ChatBody).to_request()
    assert (refused.value.param, refused.value.code) == (field, "invalid_value")
    assert field in str(refused.value)
    assert told in str(refused.value)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("value", [-1, 6, True, 1.5])
def test_text_completions_have_at_most_five_log_probabilities(value: object) -> None:
    body = json.dumps({"model": "tiny", "prompt": "x", "logprobs": value}).encode()
    with pytest.raises(InvalidRequest) as refused:
        parse(body, CompletionBody)
    assert refused.value.param == "logprobs"


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"n": 17}, "n", "n is 17; 1 to 16 are possible"),
        ({"logit_bias": {"320": 1}}, "logit_bias", "ids are 0 to 319"),
        ({"stop_token_ids": [5, 320]}, "stop_token_ids", "ids are 0 to 319"),
        ({"min_tokens": 9}, "min_tokens", "set it to 0 to 8"),
    ],
)
async def test_what_model_and_platform_do_not_have_is_refused_in_openais_form(
    gateway: Gateway, fields: dict[str, Any], param: str, told: str
) -> None:
    response = await gateway.chat(**fields)
    error = error_of(response)
    assert (response.status_code, error["type"]) == (400, "invalid_request_error")
    assert (error["param"], error["code"]) == (param, "invalid_value")
    assert told in error["message"]
    assert await gateway.usage() == []
    await gateway.assert_all_settled()


async def test_the_openai_client_shows_the_field_of_a_refusal(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.completions.create(model="tiny", prompt="x", presence_penalty=5)
    assert refused.value.param == "presence_penalty"


async def test_choices_come_in_order_each_with_its_own_reason(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    gateway.engine.answer = three_choices
    answer = await client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "x"}], n=3
    )
    assert [(c.index, c.message.content, c.finish_reason) for c in answer.choices] == [
        (0, "ab", "length"),
        (1, "d", "stop"),
        (2, "c", "stop"),
    ]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    text = await client.completions.create(model="tiny", prompt="x", n=3)
    assert [(c.index, c.text, c.finish_reason) for c in text.choices] == [
        (0, "ab", "length"),
        (1, "d", "stop"),
        (2, "c", "stop"),
    ]


async def test_streamed_choices_have_an_index_and_one_usage_at_the_end(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    gateway.engine.answer = three_choices
    stream = await client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "x"}],
        n=3,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    texts, roles, reasons = {}, [], {}
    for choice in [choice for chunk in chunks for choice in chunk.choices]:
        assert choice.index not in reasons, "a choice went on after its end"
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        if choice.delta.role is not None:
            roles.append(choice.index)
        if choice.finish_reason is not None:
            reasons[choice.index] = choice.finish_reason
    assert texts == {0: "ab", 1: "d", 2: "c"}
    assert roles == [0, 1, 2]
    assert reasons == {0: "length", 1: "stop", 2: "stop"}
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [4]
    assert chunks[-1].choices == []


async def test_a_stream_of_choices_ends_with_done(gateway: Gateway) -> None:
    gateway.engine.answer = three_choices
    for reply in (await gateway.chat(n=3, stream=True), await gateway.complete(n=3, stream=True)):
        assert reply.text.endswith("data: [DONE]\n\n")
        assert reply.text.count("[DONE]") == 1


async def test_choices_are_reserved_for_the_worst_case_and_billed_with_one_prompt(
    gateway: Gateway,
) -> None:
    _, key = await gateway.make_tenant("small", tokens_per_minute=200)
    gateway.engine.answer = three_choices
    response = await gateway.client.post(
        "/v1/chat/completions",
        json=chat_body(n=3, max_tokens=20),
        headers={"authorization": f"Bearer {key}"},
    )
    num_prompt = len((await gateway.engine.submitted()).prompt)
    remaining = int(response.headers["x-ratelimit-remaining-tokens"])
    assert remaining == 200 - num_prompt - 3 * 20
    assert response.json()["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": 4,
        "total_tokens": num_prompt + 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    await gateway.chat(n=3)
    (row,) = await gateway.usage()
    assert (row.prompt_tokens, row.completion_tokens) == (num_prompt, 4)


async def test_chat_log_probabilities_have_tokens_bytes_and_alternatives(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    gateway.engine.answer = with_logprobs
    answer = await client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "x"}],
        logprobs=True,
        top_logprobs=2,
    )
    (choice,) = answer.choices
    assert choice.logprobs is not None
    content = choice.logprobs.content
    assert content is not None
    assert [(entry.token, entry.logprob) for entry in content] == [
        ("H", -1.5),
        ("\ufffd", -0.5),
        ("\ufffd", -0.25),
    ]
    assert b"".join(bytes(entry.bytes or []) for entry in content).decode() == "Hé"
    assert choice.message.content == "Hé"
    assert [(t.token, t.bytes, t.logprob) for t in content[1].top_logprobs] == [
        ("\ufffd", [0xC3], -0.5),
        ("<|im_end|>", None, -9999.0),
    ]
    ChatCompletion.model_validate(answer.model_dump(), strict=True)


async def test_streamed_log_probabilities_come_with_their_text(gateway: Gateway) -> None:
    gateway.engine.answer = with_logprobs
    reply = await gateway.chat(stream=True, logprobs=True, top_logprobs=2)
    events = [json.loads(e.removeprefix("data: ")) for e in reply.text.split("\n\n")[:-2]]
    for event in events:
        ChatCompletionChunk.model_validate(event, strict=True)
    choices = [event["choices"][0] for event in events]
    assert choices[0]["logprobs"] is None
    assert choices[-1]["logprobs"] is None
    content = [entry for choice in choices[1:-1] for entry in choice["logprobs"]["content"]]
    data = b"".join(bytes(entry["bytes"]) for entry in content)
    assert data.decode() == "".join(c["delta"].get("content", "") for c in choices) == "Hé"


async def test_text_log_probabilities_are_four_arrays(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    gateway.engine.answer = with_logprobs
    answer = await client.completions.create(model="tiny", prompt="x", logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["H", "bytes:\\xc3", "bytes:\\xa9"]
    assert logprobs.token_logprobs == [-1.5, -0.5, -0.25]
    assert logprobs.text_offset == [0, 1, 1]
    assert logprobs.top_logprobs == [
        {"H": -1.5, "h": -0.75},
        {"bytes:\\xc3": -0.5, "<|im_end|>": -9999.0},
        {"bytes:\\xa9": -0.25},
    ]
    Completion.model_validate(answer.model_dump(), strict=True)


async def test_without_tokens_there_are_log_probabilities_of_none(gateway: Gateway) -> None:
    gateway.engine.answer = lambda engine, i: engine.finish(i)
    chat = (await gateway.chat(logprobs=True)).json()["choices"][0]["logprobs"]
    text = (await gateway.complete(logprobs=1)).json()["choices"][0]["logprobs"]
    assert chat == {"content": [], "refusal": None}
    assert text == {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
