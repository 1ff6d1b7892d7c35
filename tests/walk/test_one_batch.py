"""Many adapters of three tenants and the base model, called at once by the openai client."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.walk.served import Served, usage_rows

from loraplex.adapters.checkpoint import compute_digest
from loraplex.platform.demo.seed import DEMO_ADAPTERS

ROOT = Path(__file__).parent.parent.parent
MIN_MARGIN = 1e-4
"""Below this gap between the two largest logits, float32 may rightly choose either token."""
PROMPTS = (
    "Hello, I paid twice for order 48213 and nobody answers. Please refund one payment. Ana Diaz",
    "The app closes by itself whenever I open the settings page on my phone.",
    "How many orders did customer 17 place?",
)


def digest_of(model: str) -> str | None:
    """The digest of a demo adapter's files; None for the base model."""
    if "/" not in model:
        return None
    return compute_digest(DEMO_ADAPTERS / model)


@dataclass(frozen=True)
class Asked:
    tenant: str
    model: str
    prompt: str

    @property
    def body(self) -> dict:
        messages = [{"role": "user", "content": self.prompt}]
        return {"model": self.model, "messages": messages, "temperature": 0, "max_tokens": 40}


@pytest.fixture(scope="module")
def asked(served: Served) -> list[Asked]:
    models = [
        (tenant["name"], model)
        for tenant in served.ready["tenants"]
        for model in (*tenant["adapters"], served.base_model)
    ]
    return [Asked(tenant, model, prompt) for prompt in PROMPTS for tenant, model in models]


def ask(served: Served, asked: list[Asked], version: int) -> dict:
    """Stream all requests at once with one major version of the openai client."""
    client = ROOT / ".openai-clients" / str(version)
    assert client.is_dir(), f"{client} is missing; `make test` installs it"
    requests = [{"key": served.key(request.tenant), "body": request.body} for request in asked]
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("openai_script.py")],
        input=json.dumps({"url": served.url, "requests": requests}),
        env=os.environ | {"PYTHONPATH": str(client)},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    answers = json.loads(done.stdout)
    assert answers["version"].startswith(f"{version}.")
    return answers["answers"]


@pytest.fixture(scope="module")
def answers(served: Served, asked: list[Asked]) -> list[dict]:
    return ask(served, asked, version=2)


@pytest.fixture(scope="module")
def oracle(demo_model: Path, asked: list[Asked]) -> list[dict]:
    """What each request gives alone, by transformers and PEFT."""
    requests = [
        {
            "adapter": str(DEMO_ADAPTERS / request.model) if "/" in request.model else None,
            "messages": request.body["messages"],
            "max_tokens": request.body["max_tokens"],
        }
        for request in asked
    ]
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("oracle.py")],
        input=json.dumps({"base": str(demo_model), "requests": requests}),
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return json.loads(done.stdout)


def test_every_request_equals_its_adapter_alone(
    asked: list[Asked], answers: list[dict], oracle: list[dict]
) -> None:
    compared = 0
    for request, answer, alone in zip(asked, answers, oracle, strict=True):
        if alone["margin"] > MIN_MARGIN:
            compared += 1
            assert answer["text"] == alone["text"], request
            assert answer["usage"]["completion_tokens"] == alone["num_tokens"], request
    assert compared >= len(asked) * 3 // 4


def test_adapters_give_visibly_different_answers_to_one_prompt(
    asked: list[Asked], answers: list[dict]
) -> None:
    to_first = [
        answer["text"]
        for request, answer in zip(asked, answers, strict=True)
        if request.prompt == PROMPTS[0]
    ]
    num_models = len({request.model for request in asked})
    assert len(set(to_first)) == num_models


def test_the_requests_shared_forward_passes(served: Served, answers: list[dict]) -> None:
    assert answers
    num_steps = served.metric("loraplex_step_adapters_count")
    with_few = served.metric('loraplex_step_adapters_bucket{le="4.0"}')
    assert num_steps > with_few, "no step had more than four adapters"
    steps = [line for line in served.log_lines() if line["message"] == "step"]
    assert max(line["adapters"] for line in steps) == len(served.models()) >= 6
    assert max(line["requests"] for line in steps) >= 9


@pytest.mark.parametrize("version", [1, 3])
def test_other_versions_of_the_openai_client_get_the_same_answers(
    served: Served, asked: list[Asked], answers: list[dict], oracle: list[dict], version: int
) -> None:
    some = slice(0, len(asked) // len(PROMPTS))
    for answer, before, alone in zip(
        ask(served, asked[some], version), answers[some], oracle[some], strict=True
    ):
        assert answer["error"] is None
        assert answer["finish_reason"] == before["finish_reason"]
        if alone["margin"] > MIN_MARGIN:
            assert answer["text"] == before["text"]


def test_every_request_leaves_one_usage_row_that_names_the_digest_it_ran_on(
    served: Served, asked: list[Asked], answers: list[dict]
) -> None:
    for tenant in {request.tenant for request in asked}:
        rows = usage_rows(served.data_dir, tenant)
        for request, answer in zip(asked, answers, strict=True):
            if request.tenant != tenant:
                continue
            mine = [
                row
                for row in rows
                if row["model"].partition("@")[0] == answer["model"]
                and row["prompt_tokens"] == answer["usage"]["prompt_tokens"]
                and row["completion_tokens"] == answer["usage"]["completion_tokens"]
                and row["finish_reason"] == answer["finish_reason"]
            ]
            assert mine, request
            assert {row["adapter_digest"] for row in mine} == {digest_of(request.model)}
            assert all(
                row["accepted_at"] < row["first_token_at"] <= row["finished_at"] for row in mine
            )
        assert len({row["request_id"] for row in rows}) == len(rows)
