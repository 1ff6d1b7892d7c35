"""Clients that leave, at every stage: one line in the ledger or none, and no hold left."""

import asyncio
import json
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable

import httpx
import openai
import pytest
from tests.platform.conftest import Gateway, chat_body
from tests.platform.scripted_engine import ScriptedEngine, says


async def send_chat(
    gateway: Gateway, server: str, **fields: object
) -> tuple[StreamReader, StreamWriter]:
    """Send a request on a raw connection."""
    body = json.dumps(chat_body(**fields)).encode()
    return await send(gateway, server, body, len(body))


async def send(
    gateway: Gateway, server: str, body: bytes, content_length: int
) -> tuple[StreamReader, StreamWriter]:
    url = httpx.URL(server)
    assert url.port is not None
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {url.host}\r\n"
        f"authorization: Bearer {gateway.key}\r\ncontent-length: {content_length}\r\n\r\n".encode()
        + body
    )
    await writer.drain()
    return reader, writer


async def leave(writer: StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


async def leave_with_reset(writer: StreamWriter) -> None:
    writer.transport.abort()


@pytest.mark.parametrize("way", [leave, leave_with_reset])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("texts", [[], ["a", "b"]])
async def test_a_client_that_leaves_is_aborted_in_the_engine_and_charged_what_ran(
    gateway: Gateway,
    server: str,
    way: Callable[[StreamWriter], Awaitable[None]],
    stream: bool,
    texts: list[str],
) -> None:
    gateway.engine.answer = None
    reader, writer = await send_chat(gateway, server, stream=stream)
    submit = await gateway.engine.submitted()
    for text in texts:
        gateway.engine.emit(submit.request_id, text)
    if stream and texts:
        await reader.readuntil(b'"a')
    await way(writer)
    await gateway.services.open_requests.drain(10)
    assert gateway.engine.aborted == [submit.request_id]
    (row,) = await gateway.usage()
    assert row.finish_reason == "abort"
    assert (row.prompt_tokens, row.completion_tokens) == (len(submit.prompt), len(texts))
    await gateway.assert_all_settled()


@pytest.mark.parametrize("stream", [True, False])
async def test_the_users_client_that_gives_up_is_charged_what_ran(
    gateway: Gateway, server: str, stream: bool
) -> None:
    gateway.engine.answer = None
    async with openai.AsyncOpenAI(
        api_key=gateway.key, base_url=f"{server}/v1", max_retries=0
    ) as client:
        request = asyncio.create_task(
            client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "x"}], stream=stream
            )
        )
        submit = await gateway.engine.submitted()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await gateway.services.open_requests.drain(10)
    assert gateway.engine.aborted == [submit.request_id]
    assert [row.finish_reason for row in await gateway.usage()] == ["abort"]
    await gateway.assert_all_settled()


async def test_half_a_body_costs_nothing(gateway: Gateway, server: str) -> None:
    _, writer = await send(gateway, server, b'{"model": "ti', 100)
    await leave(writer)
    # The next request on the same server is served after it.
    assert (await gateway.chat()).status_code == 200
    assert len(await gateway.usage()) == 1
    await gateway.assert_all_settled()


async def test_the_retry_of_a_client_that_left_never_runs_beside_what_it_left(
    gateway: Gateway, server: str
) -> None:
    await gateway.put_limit("key", "concurrency", 1)
    gateway.engine.answer = None
    _, writer = await send_chat(gateway, server, stream=True)
    left = (await gateway.engine.submitted()).request_id
    await leave(writer)

    def answer(engine: ScriptedEngine, request_id: str) -> None:
        assert engine.aborted == [left]
        says("x")(engine, request_id)

    gateway.engine.answer = answer
    # Where it comes before the first has ended, it is told to come again in a second.
    async with openai.AsyncOpenAI(api_key=gateway.key, base_url=f"{server}/v1") as client:
        await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x"}], max_tokens=8
        )
    await gateway.services.open_requests.drain(10)
    assert sorted(row.finish_reason for row in await gateway.usage()) == ["abort", "stop"]
