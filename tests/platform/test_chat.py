"""Chat completions that are not streamed."""

import pytest
from tests.platform.conftest import NOW, Gateway, chat_body, error_of
from tests.platform.scripted_engine import says
from tests.platform.tiny_model import model_info


async def test_an_answer_has_the_form_that_clients_expect(gateway: Gateway) -> None:
    response = await gateway.chat(seed=5)
    assert response.status_code == 200
    body = response.json()
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert body["created"] == int(NOW.timestamp())
    assert body["model"] == "tiny"
    assert body["system_fingerprint"].startswith("fp_")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello!", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    num_prompt = len((await gateway.engine.submitted()).prompt)
    assert body["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": 3,
        "total_tokens": num_prompt + 3,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_the_answer_and_its_request_share_an_id_with_the_ledger(gateway: Gateway) -> None:
    response = await gateway.chat()
    request_id = response.headers["x-request-id"]
    assert request_id.removeprefix("req_") == response.json()["id"].removeprefix("chatcmpl-")
    assert [row.request_id for row in await gateway.usage()] == [request_id]


async def test_sampling_reaches_the_engine_as_it_was_asked_for(gateway: Gateway) -> None:
    await gateway.chat(temperature=0.5, top_p=0.9, top_k=40, seed=-1, stop=["a", "b"], max_tokens=9)
    sampling = (await gateway.engine.submitted()).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 40)
    assert (sampling.stop, sampling.max_tokens) == (("a", "b"), 9)
    assert sampling.seed == (1 << 63) - 1


async def test_without_a_seed_each_request_gets_another(gateway: Gateway) -> None:
    await gateway.chat()
    await gateway.chat()
    seeds = {(await gateway.engine.submitted()).sampling.seed for _ in range(2)}
    assert len(seeds) == 2
    assert all(0 <= seed < 1 << 63 for seed in seeds)


async def test_the_newer_name_of_max_tokens_wins(gateway: Gateway) -> None:
    await gateway.chat(max_tokens=5, max_completion_tokens=6)
    assert (await gateway.engine.submitted()).sampling.max_tokens == 6


async def test_without_max_tokens_the_output_may_fill_the_context(gateway: Gateway) -> None:
    response = await gateway.chat(max_tokens=None)
    submit = await gateway.engine.submitted()
    assert response.status_code == 200
    assert len(submit.prompt) + submit.sampling.max_tokens == 256


async def test_more_output_than_the_context_leaves_is_refused_with_numbers(
    gateway: Gateway,
) -> None:
    response = await gateway.chat(max_tokens=None, max_completion_tokens=250)
    error = error_of(response)
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == "max_completion_tokens"
    assert "250" in error["message"]
    assert "256" in error["message"]


@pytest.mark.parametrize("times", [100, 2000])
async def test_a_prompt_that_fills_the_context_is_refused_with_numbers(
    gateway: Gateway, times: int
) -> None:
    response = await gateway.chat(messages=[{"role": "user", "content": "hey ~ " * times}])
    error = error_of(response)
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == "messages"
    assert "256" in error["message"]
    assert "hey" not in error["message"]
    assert await gateway.usage() == []


async def test_an_adapter_runs_under_its_digest_and_answers_by_the_name_that_was_asked_for(
    gateway: Gateway,
) -> None:
    await gateway.publish("support", "d1")
    await gateway.publish("support", "d2")
    asked = ("acme/support", "acme/support@1", "tiny")
    answers = [await gateway.chat(model=model) for model in asked]
    assert [answer.json()["model"] for answer in answers] == list(asked)
    ran = [answer.headers["x-loraplex-model"] for answer in answers]
    assert ran == ["acme/support@2", "acme/support@1", "tiny"]
    assert sorted(row.model for row in await gateway.usage()) == sorted(ran)
    assert [(await gateway.engine.submitted()).adapter for _ in range(3)] == ["d2", "d1", None]
    fingerprints = {answer.json()["system_fingerprint"] for answer in answers}
    assert len(fingerprints) == 3


async def test_a_foreign_model_is_told_exactly_as_an_absent_one(gateway: Gateway) -> None:
    other, _ = await gateway.make_tenant("other")
    await gateway.publish("support", "d1", other)
    foreign = await gateway.chat(model="other/support")
    absent = await gateway.chat(model="other/nothing")
    assert foreign.status_code == absent.status_code == 404
    assert error_of(foreign)["code"] == "model_not_found"
    assert foreign.text.replace("support", "nothing") == absent.text


async def test_each_request_leaves_one_line_in_the_ledger(gateway: Gateway) -> None:
    await gateway.publish("support", "d1")
    await gateway.chat(model="acme/support")
    (row,) = await gateway.usage()
    submit = await gateway.engine.submitted()
    assert (row.requested_model, row.model) == ("acme/support", "acme/support@1")
    assert row.adapter_digest == "d1"
    assert (row.prompt_tokens, row.completion_tokens) == (len(submit.prompt), 3)
    assert (row.finish_reason, row.queue_ms) == ("stop", 1.5)
    assert row.first_token_at == NOW
    await gateway.assert_all_settled()


async def test_the_reservation_is_the_worst_case_and_the_rest_comes_back(
    gateway: Gateway,
) -> None:
    _, key = await gateway.make_tenant("small", tokens_per_minute=100)
    headers = {"authorization": f"Bearer {key}"}
    gateway.engine.answer = says(*"abcd")
    first = await gateway.client.post(
        "/v1/chat/completions", json=chat_body(max_tokens=50), headers=headers
    )
    submit = await gateway.engine.submitted()
    reserved = len(submit.prompt) + 50
    assert int(first.headers["x-ratelimit-remaining-tokens"]) == 100 - reserved
    second = await gateway.client.post(
        "/v1/chat/completions", json=chat_body(max_tokens=50), headers=headers
    )
    used = len(submit.prompt) + 4
    assert int(second.headers["x-ratelimit-remaining-tokens"]) == 100 - used - reserved


async def test_admitted_requests_have_rate_headers(gateway: Gateway) -> None:
    headers = (await gateway.chat()).headers
    assert headers["x-ratelimit-limit-requests"] == "10000"
    assert headers["x-ratelimit-remaining-requests"] == "9999"
    assert headers["x-ratelimit-reset-requests"] == "6ms"
    assert headers["x-ratelimit-limit-tokens"] == "1000000"
    assert "x-ratelimit-reset-tokens" in headers


async def test_developer_messages_are_system_messages(gateway: Gateway) -> None:
    for role in ("system", "developer"):
        await gateway.chat(messages=[{"role": role, "content": "x"}])
    prompts = [(await gateway.engine.submitted()).prompt for _ in range(2)]
    assert prompts[0] == prompts[1]


async def test_text_parts_are_joined_by_lines(gateway: Gateway) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    await gateway.chat(messages=[{"role": "user", "content": parts}])
    await gateway.chat(messages=[{"role": "user", "content": "one\ntwo"}])
    prompts = [(await gateway.engine.submitted()).prompt for _ in range(2)]
    assert prompts[0] == prompts[1]


async def test_an_assistants_answer_can_be_sent_back_as_it_came(gateway: Gateway) -> None:
    answer = (await gateway.chat()).json()["choices"][0]["message"]
    again = [{"role": "user", "content": "hello"}, answer, {"role": "user", "content": "more"}]
    assert (await gateway.chat(messages=again)).status_code == 200


async def test_a_model_without_a_template_is_for_text_completions(gateway: Gateway) -> None:
    gateway.engine.model_info = model_info(chat_template=None)
    error = error_of(await gateway.chat())
    assert "/v1/completions" in error["message"]
    assert (await gateway.complete()).status_code == 200


async def test_what_the_template_refuses_is_told_in_its_words(gateway: Gateway) -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    gateway.engine.model_info = model_info(chat_template=template)
    response = await gateway.chat()
    assert response.status_code == 400
    assert "roles must alternate" in error_of(response)["message"]
