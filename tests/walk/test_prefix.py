"""A prompt that begins as an earlier one did is found, told and recorded; but not by strangers."""

from tests.walk.served import Served, usage_rows

PROMPT = (
    "Two people asked about the very same parcel on the very same day, and nobody else did. " * 4
)


def ask(served: Served, tenant: str, prompt: str = PROMPT) -> tuple[int, int, str]:
    """Prompt tokens, cached ones among them, and the answer."""
    messages = [{"role": "user", "content": prompt}]
    body = {"model": served.base_model, "messages": messages, "temperature": 0, "max_tokens": 4}
    answer = served.post(served.key(tenant), body)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    row = next(
        row
        for row in usage_rows(served.data_dir, tenant)
        if row["request_id"].removeprefix("req_") == answer.json()["id"].removeprefix("chatcmpl-")
    )
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert (row["prompt_tokens"], row["cached_tokens"]) == (usage["prompt_tokens"], cached)
    return usage["prompt_tokens"], cached, answer.json()["choices"][0]["message"]["content"]


def test_a_prompt_that_is_asked_again_is_found_by_its_tenant_alone(served: Served) -> None:
    first, again, longer = (
        ask(served, "acme"),
        ask(served, "acme"),
        ask(served, "acme", PROMPT + "What now?"),
    )
    other, *_ = [t["name"] for t in served.ready["tenants"] if t["name"] != "acme"]
    stranger = ask(served, other)
    num_tokens = first[0]
    block = 16
    # The template's beginning may have been computed for other requests of the tenants.
    assert first[1] < num_tokens // 2
    assert stranger[1] < num_tokens // 2
    assert again[1] == (num_tokens - 1) // block * block
    assert longer[1] >= again[1] - block
    assert first[2] == again[2] == stranger[2]
