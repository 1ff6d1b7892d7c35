"""Streams without events, and clients that do not read theirs."""

import asyncio
import json
import socket
from pathlib import Path

import httpx
import pytest
from tests.platform.conftest import Gateway, chat_body

from loraplex.engine.errors import EngineOverloaded
from loraplex.platform.settings import Settings


@pytest.fixture
def settings(tmp_path: Path, gateway_database_url: str) -> Settings:
    return Settings(data_dir=tmp_path, database_url=gateway_database_url, keepalive_s=0.05)


async def test_a_silent_stream_starts_and_lives_by_comments(gateway: Gateway, server: str) -> None:
    gateway.engine.answer = None
    async with (
        httpx.AsyncClient(headers=gateway.headers) as client,
        client.stream(
            "POST", f"{server}/v1/chat/completions", json=chat_body(stream=True)
        ) as response,
    ):
        assert response.status_code == 200
        lines = response.aiter_lines()
        comments = [await anext(lines) for _ in range(4)]
        assert comments == [": keepalive", "", ": keepalive", ""]
        request_id = (await gateway.engine.submitted()).request_id
        gateway.engine.emit(request_id, "x")
        gateway.engine.finish(request_id)
        rest = [line async for line in lines if line.startswith("data: ")]
    assert [json.loads(line[6:])["choices"][0]["delta"] for line in rest[:-1]] == [
        {"role": "assistant", "content": ""},
        {"content": "x"},
        {},
    ]


async def test_an_error_after_a_comment_is_an_event(gateway: Gateway, server: str) -> None:
    gateway.engine.answer = None
    async with (
        httpx.AsyncClient(headers=gateway.headers) as client,
        client.stream(
            "POST", f"{server}/v1/chat/completions", json=chat_body(stream=True)
        ) as response,
    ):
        lines = response.aiter_lines()
        assert await anext(lines) == ": keepalive"
        request_id = (await gateway.engine.submitted()).request_id
        gateway.engine.reject(request_id, EngineOverloaded("full", 1.0))
        rest = [line async for line in lines if line.startswith("data: ")]
    assert [json.loads(line[6:])["error"]["code"] for line in rest] == ["server_is_overloaded"]


async def test_a_client_that_does_not_read_is_cut_off_and_no_other_waits_for_it(
    gateway: Gateway, server: str
) -> None:
    gateway.engine.answer = None
    stalled = await open_stream(gateway, server, receive_buffer_bytes=4096)
    slow_id = (await gateway.engine.submitted()).request_id
    other = asyncio.create_task(gateway.chat())
    other_id = (await gateway.engine.submitted()).request_id
    # More than the buffers of both sockets and the server take.
    for _ in range(64):
        gateway.engine.emit(slow_id, "x" * 100_000)
        await gateway.engine.settled()
    gateway.engine.emit(other_id, "y")
    gateway.engine.finish(other_id)
    assert (await other).status_code == 200
    await gateway.services.open_requests.drain(10)
    rows = {row.request_id: row for row in await gateway.usage()}
    assert rows[slow_id].finish_reason == "abort"
    assert rows[slow_id].completion_tokens == 64
    assert gateway.engine.aborted == [slow_id]
    await gateway.assert_all_settled()
    stalled.close()


async def test_a_client_that_stalls_in_a_pause_of_the_engine_is_cut_off_too(
    gateway: Gateway, server: str
) -> None:
    gateway.engine.answer = None
    stalled = await open_stream(gateway, server, receive_buffer_bytes=4096)
    slow_id = (await gateway.engine.submitted()).request_id
    gateway.engine.emit(slow_id, "x" * 8_000_000)
    await gateway.services.open_requests.drain(10)
    (row,) = await gateway.usage()
    assert (row.finish_reason, row.completion_tokens) == ("abort", 1)
    stalled.close()


async def open_stream(gateway: Gateway, server: str, receive_buffer_bytes: int) -> socket.socket:
    """Ask for a stream on a socket that nobody reads."""
    url = httpx.URL(server)
    body = json.dumps(chat_body(stream=True)).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {url.host}\r\n"
        f"authorization: Bearer {gateway.key}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    client.settimeout(0)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, (url.host, url.port))
    await loop.sock_sendall(client, head.encode() + body)
    return client
