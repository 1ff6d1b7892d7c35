"""Refusals as three major versions of the users' client take them, with its retries."""

import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.platform.conftest import Gateway, chat_body
from tests.platform.scripted_engine import ScriptedEngine, says

from loraplex.engine.errors import EngineOverloaded

CLIENTS = Path(__file__).parents[2] / ".openai-clients"
NUM_TOKENS = 64
"""Most that a request may take: no prompt of these is longer than 56."""
CASES = {
    # That of one request, which has been made.
    "budget": ("tokens_per_month", NUM_TOKENS, None),
    "too_large": ("tokens_per_minute", 1, None),
    # One at once, the next a second later.
    "rate": ("requests_per_minute", 60, 1),
    "overloaded": ("requests_per_minute", 1000, None),
}


async def ask(version: int, url: str, keys: dict[str, str]) -> dict[str, Any]:
    """What the client makes of each case; two requests at once of `rate`."""
    client = CLIENTS / str(version)
    assert client.is_dir(), f"{client} is missing; `make test` installs it"
    cases = {name: {"key": key, "times": 1 + (name == "rate")} for name, key in keys.items()}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        Path(__file__).with_name("openai_refusals.py"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(client)},
    )
    output, _ = await process.communicate(json.dumps({"url": url, "cases": cases}).encode())
    told = json.loads(output)
    assert told["version"].startswith(f"{version}.")
    answers: dict[str, Any] = told["answers"]
    return answers


async def spend(gateway: Gateway, key: str) -> None:
    """Make a request that takes half of a budget of NUM_TOKENS."""
    gateway.engine.answer = says(*"x" * (NUM_TOKENS // 2))
    headers = {"authorization": f"Bearer {key}"}
    body = chat_body(max_tokens=NUM_TOKENS // 2)
    reply = await gateway.client.post("/v1/chat/completions", json=body, headers=headers)
    assert reply.status_code == 200


async def test_clients_retry_what_may_help_when_it_may_and_nothing_else(
    gateway: Gateway, server: str, caplog: pytest.LogCaptureFixture
) -> None:
    keys: dict[int, dict[str, str]] = {}
    crowded = set()
    for version in (1, 2, 3):
        keys[version] = {}
        for name, (dimension, value, burst) in CASES.items():
            tenant, key = await gateway.make_tenant(f"{name}-{version}".replace("_", "-"))
            await gateway.put_limit("key", dimension, value, key=key, burst=burst)
            keys[version][name] = key
            if name == "budget":
                await spend(gateway, key)
            if name == "overloaded":
                crowded.add(tenant.id)

    def answer(engine: ScriptedEngine, request_id: str) -> None:
        if engine.runs[request_id].submit.tenant in crowded:
            engine.reject(request_id, EngineOverloaded("full", 0.01))
        else:
            says("x")(engine, request_id)

    gateway.engine.answer = answer
    caplog.clear()
    with caplog.at_level("INFO", "loraplex.access"):
        found = await asyncio.gather(*(ask(version, server, keys[version]) for version in keys))
    for answers in found:
        assert answers == {
            "budget": [["RateLimitError", "token_budget_exhausted"]],
            "too_large": [["BadRequestError", "request_exceeds_limit"]],
            "rate": [[None, None], [None, None]],
            "overloaded": [["InternalServerError", "server_is_overloaded"]],
        }
    lines = [record for record in caplog.records if record.name == "loraplex.access"]
    statuses = Counter(line.fields["status"] for line in lines)  # type: ignore[attr-defined]  # our own
    # Of each version: one for the budget, one that was refused and came back in time, two served,
    # one that can never fit, and three of what might have helped.
    assert statuses == {429: 2 * 3, 200: 2 * 3, 400: 3, 503: 3 * 3}
