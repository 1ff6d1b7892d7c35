"""Sampling options on the demo, through the openai client, against what the model itself says."""

import asyncio
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion
from tests.walk.served import Served, usage_rows

MESSAGES = [{"role": "user", "content": "Name two colours, then draw a small 🦊."}]


def client_of(served: Served) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{served.url}/v1", api_key=served.key("acme"), max_retries=0, timeout=120
    )


def chat(served: Served, **fields: Any) -> ChatCompletion:
    values = {"model": served.base_model, "messages": MESSAGES, "max_tokens": 12, "seed": 5}
    with client_of(served) as client:
        return client.chat.completions.create(**(values | fields))


def texts(answer: ChatCompletion) -> list[str]:
    return [choice.message.content or "" for choice in answer.choices]


def test_choices_differ_are_reproducible_and_the_first_is_what_one_choice_would_be(
    served: Served,
) -> None:
    three, again, one = chat(served, n=3), chat(served, n=3), chat(served)
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert len(set(texts(three))) == 3
    assert texts(three) == texts(again)
    assert texts(one) == texts(three)[:1]
    assert three.usage is not None
    assert one.usage is not None
    assert three.usage.prompt_tokens == one.usage.prompt_tokens
    assert three.usage.completion_tokens == 36
    rows = {row["request_id"]: row for row in usage_rows(served.data_dir, "acme")}
    row = rows[f"req_{three.id.removeprefix('chatcmpl-')}"]
    assert (row["prompt_tokens"], row["completion_tokens"]) == (three.usage.prompt_tokens, 36)


async def test_a_seed_gives_the_same_alone_and_beside_others(served: Served) -> None:
    options: list[dict[str, Any]] = [
        {"seed": 1, "top_p": 0.9, "presence_penalty": 1.0},
        {"seed": 2, "n": 2, "extra_body": {"min_p": 0.05, "repetition_penalty": 1.2}},
        {"seed": 3, "temperature": 0.0, "logprobs": True},
        {"seed": 4, "frequency_penalty": 1.0, "logit_bias": {"28": -5}},
    ]
    alone = [await asyncio.to_thread(chat, served, **option) for option in options]
    together = await asyncio.gather(
        *(asyncio.to_thread(chat, served, **option) for option in options)
    )
    assert [texts(answer) for answer in together] == [texts(answer) for answer in alone]


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_the_bytes_of_log_probabilities_are_the_text(served: Served, temperature: float) -> None:
    answer = chat(
        served, temperature=temperature, logprobs=True, top_logprobs=3, max_tokens=40, stop=["\n\n"]
    )
    (choice,) = answer.choices
    assert choice.logprobs is not None
    entries = choice.logprobs.content or []
    data = b"".join(bytes(entry.bytes or []) for entry in entries)
    assert data.decode() == choice.message.content
    for entry in entries:
        tops = [top.logprob for top in entry.top_logprobs]
        assert tops == sorted(tops, reverse=True)
        assert entry.logprob <= tops[0] + 1e-9
        if temperature == 0:
            assert entry.logprob == tops[0]


def test_streamed_log_probabilities_are_those_of_the_whole_answer(served: Served) -> None:
    fields = {"temperature": 0.0, "logprobs": True, "top_logprobs": 1, "n": 2}
    whole = chat(served, **fields)
    streamed: dict[int, list[Any]] = {0: [], 1: []}
    with client_of(served) as client:
        stream = client.chat.completions.create(
            model=served.base_model, messages=MESSAGES, max_tokens=12, stream=True, **fields
        )
        for chunk in stream:
            for choice in chunk.choices:
                if choice.logprobs is not None:
                    streamed[choice.index] += choice.logprobs.content or []
    for choice in whole.choices:
        assert choice.logprobs is not None
        expected = [entry.token for entry in choice.logprobs.content or []]
        assert [entry.token for entry in streamed[choice.index]] == expected


def test_min_tokens_stop_tokens_and_bias_decide_when_an_answer_ends(served: Served) -> None:
    key, base = served.key("acme"), {"model": served.base_model, "prompt": "1 2 3", "seed": 1}
    free = served.post(key, base | {"max_tokens": 1, "logprobs": 1}, "/v1/completions").json()
    assert free["usage"]["completion_tokens"] == 1
    bias = {"max_tokens": 5, "logit_bias": {"40": 100}, "stop_token_ids": [40]}
    stopped = served.post(key, base | bias, "/v1/completions").json()
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert (stopped["choices"][0]["text"], stopped["usage"]["completion_tokens"]) == ("", 1)
    later = served.post(key, base | bias | {"min_tokens": 3}, "/v1/completions").json()
    assert later["choices"][0]["finish_reason"] == "stop"
    assert later["usage"]["completion_tokens"] == 4
