"""Limits of a body, ids of requests, the access log, and what it never says."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.platform.conftest import Gateway, chat_body, error_of
from tests.platform.scripted_engine import says

from loraplex.platform.log import JsonFormatter, configure_logging
from loraplex.platform.settings import Settings
from loraplex.tenants.errors import DatabaseUnusable

CANARY = "canary-prompt-7f3a"


@pytest.fixture
def settings(tmp_path: Path, gateway_database_url: str) -> Settings:
    return Settings(
        data_dir=tmp_path,
        database_url=gateway_database_url,
        max_body_bytes=100_000,
        body_timeout_s=0.2,
    )


async def test_a_declared_length_above_the_limit_is_refused_unread(gateway: Gateway) -> None:
    async def body():
        raise AssertionError("the body was read")
        yield b""

    response = await gateway.client.post(
        "/v1/chat/completions", content=body(), headers={"content-length": "100001"}
    )
    assert (response.status_code, error_of(response)["code"]) == (413, "request_too_large")
    assert response.headers["x-request-id"].startswith("req_")


async def test_bytes_are_counted_as_they_come(gateway: Gateway) -> None:
    sent = 0

    async def body():
        nonlocal sent
        for _ in range(100):
            sent += 10_000
            yield b"x" * 10_000

    response = await gateway.client.post("/v1/chat/completions", content=body())
    assert (response.status_code, error_of(response)["code"]) == (413, "request_too_large")
    assert sent <= 120_000


async def test_twenty_megabytes_over_a_socket_get_a_413_that_can_be_read(
    gateway: Gateway, server: str
) -> None:
    async with httpx.AsyncClient(headers=gateway.headers) as client:
        url = f"{server}/v1/chat/completions"
        response = await client.post(url, content=b"x" * 20_000_000)
        assert response.status_code == 413
        assert (await client.post(url, json=chat_body())).status_code == 200


async def test_a_body_at_the_limit_is_read(gateway: Gateway) -> None:
    body = json.dumps(chat_body()).encode().ljust(100_000)
    response = await gateway.client.post("/v1/chat/completions", content=body)
    assert response.status_code == 200


async def test_a_body_that_does_not_come_gets_408_and_a_closed_connection(
    gateway: Gateway, server: str
) -> None:
    url = httpx.URL(server)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.key}\r\n"
        "content-length: 100\r\n\r\n{".encode()
    )
    answer = (await reader.read()).decode()
    assert answer.startswith("HTTP/1.1 408")
    assert "request_timeout" in answer
    writer.close()
    await gateway.assert_all_settled()


async def test_an_answer_may_take_longer_than_a_body(gateway: Gateway, server: str) -> None:
    gateway.engine.answer = None
    async with httpx.AsyncClient(headers=gateway.headers) as client:
        request = asyncio.create_task(
            client.post(f"{server}/v1/chat/completions", json=chat_body())
        )
        request_id = (await gateway.engine.submitted()).request_id
        done, _ = await asyncio.wait([request], timeout=0.4)
        assert not done
        gateway.engine.finish(request_id)
        assert (await request).status_code == 200


async def test_each_response_has_an_id_of_its_own(gateway: Gateway) -> None:
    responses = [
        await gateway.chat(),
        await gateway.chat(temperature=9),
        await gateway.client.get("/livez"),
        await gateway.client.get("/nothing", headers={"x-request-id": "mine"}),
    ]
    ids = [response.headers["x-request-id"] for response in responses]
    assert len(set(ids)) == len(ids)
    assert all(len(i) == 36 and i.startswith("req_") for i in ids)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Everything that is logged, at the most verbose level."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging("debug", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


def lines_of(log: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


async def test_the_access_log_has_a_line_per_request(gateway: Gateway, log: io.StringIO) -> None:
    response = await gateway.chat()
    (line,) = [line for line in lines_of(log) if line["logger"] == "loraplex.access"]
    assert line["request_id"] == response.headers["x-request-id"]
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/chat/completions", 200)
    assert (line["tenant"], line["model"]) == (gateway.tenant.id, "tiny")
    assert (line["completion_tokens"], line["outcome"]) == (3, "ok")


async def test_paths_in_the_log_are_templates(gateway: Gateway, log: io.StringIO) -> None:
    await gateway.client.get(f"/v1/models/{CANARY}")
    await gateway.client.get(f"/{CANARY}?{CANARY}")
    await gateway.client.get(f"/admin/v1/tenants/{CANARY}/keys")
    await gateway.client.get("/console")
    await gateway.client.get(f"/console/tenants/{CANARY}/keys")
    paths = [line["path"] for line in lines_of(log) if line["logger"] == "loraplex.access"]
    assert paths == [
        "/v1/models/{model:path}",
        "unmatched",
        "/admin/v1/tenants/{tenant}/keys",
        "/console",
        "/console/tenants/{name}/keys",
    ]
    assert CANARY not in log.getvalue()


async def test_no_key_and_no_prompt_reaches_the_log_or_an_error(
    gateway: Gateway, server: str, log: io.StringIO
) -> None:
    def fails_midway(engine: object, request_id: str) -> None:
        gateway.engine.emit(request_id, CANARY)
        gateway.engine.fail(request_id)

    message = {"role": "user", "content": CANARY}
    async with httpx.AsyncClient(headers=gateway.headers) as client:
        for answer in (says(CANARY), fails_midway):
            gateway.engine.answer = answer
            for fields in (
                {},
                {"stream": True},
                {"temperature": 9},
                {"stop": [CANARY, ""]},
                {"max_tokens": 10_000},
                {"messages": [message | {"mood": CANARY}]},
                {"messages": [message | {"content": CANARY * 2000}]},
            ):
                body = chat_body(**({"messages": [message]} | fields))
                response = await client.post(f"{server}/v1/chat/completions", json=body)
                if response.status_code != 200:
                    assert CANARY not in response.text
            await client.post(f"{server}/v1/completions", json={"model": "tiny", "prompt": CANARY})
            await client.post(f"{server}/v1/completions", content=CANARY.encode())
        bad_key = gateway.key[:-1]
        await client.get(f"{server}/v1/models", headers={"authorization": f"Bearer {bad_key}"})
    assert len(lines_of(log)) > 15
    assert CANARY not in log.getvalue()
    assert bad_key[:30] not in log.getvalue()


def test_lines_without_a_request_are_json_too() -> None:
    record = logging.LogRecord("a", logging.INFO, "f", 1, "say %s", ('"x"\n',), None)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == 'say "x"\n'
    assert "request_id" not in json.loads(line)


async def test_metrics_count_outcomes_tokens_and_times(gateway: Gateway) -> None:
    await gateway.chat()
    await gateway.chat(stream=True)
    await gateway.chat(temperature=9)
    await gateway.client.post("/v1/completions", headers={"authorization": ""})
    gateway.engine.die()
    await gateway.chat()
    gateway.engine.is_connected = True
    text = (await gateway.client.get("/metrics")).text
    for line in (
        'loraplex_requests_total{outcome="ok"} 2.0',
        'loraplex_requests_total{outcome="client_error"} 1.0',
        'loraplex_requests_total{outcome="unauthorized"} 1.0',
        'loraplex_requests_total{outcome="overloaded"} 1.0',
        "loraplex_ttft_seconds_count 2.0",
        "loraplex_tpot_seconds_count 2.0",
        "loraplex_open_requests 0.0",
        "loraplex_completion_tokens_total 6.0",
        "worker_steps_total 1",
    ):
        assert line in text.splitlines()


async def test_probes_follow_the_worker(gateway: Gateway) -> None:
    for path in ("/readyz", "/health"):
        assert (await gateway.client.get(path)).status_code == 200
    gateway.engine.die()
    for path in ("/readyz", "/health"):
        assert (await gateway.client.get(path)).status_code == 503
    assert (await gateway.client.get("/startupz")).status_code == 200
    gateway.engine.model_info = None
    assert (await gateway.client.get("/startupz")).status_code == 503
    assert (await gateway.client.get("/livez")).status_code == 200


async def test_stores_that_are_away_are_told_and_make_no_gateway_unready(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> int:
        raise DatabaseUnusable("nobody answers")

    monkeypatch.setattr(type(gateway.resources.quotas), "is_degraded", True)
    monkeypatch.setattr(gateway.resources.database, "catalogue_version", away)
    await gateway.services.standing_watch.try_to_look()
    answer = await gateway.client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json().keys() == {"status", "quotas", "database"}
    monkeypatch.undo()
    await gateway.services.standing_watch.try_to_look()
    assert (await gateway.client.get("/readyz")).json() == {"status": "ok"}


async def test_a_journal_that_fails_is_told_and_makes_no_gateway_unready(
    gateway: Gateway,
) -> None:
    gateway.engine.journal_failure = "No space left on device"
    answer = await gateway.client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {
        "status": "ok",
        "journal": "no request is taken: No space left on device",
    }
