"""The gateway's end: whatever ends it, what ran is in the ledger before its database closes."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text
from tests.engine.simulated_worker import SimulatedWorker, running
from tests.platform.conftest import PEPPER, chat_body, make_tenant
from tests.platform.scripted_engine import ScriptedEngine
from tests.platform.test_shared_stores import announced
from tests.platform.tiny_model import model_info
from tests.platform.walking import AWAY, FailingDatabase

from loraplex.engine.frames import UnixAddress
from loraplex.engine.protocol import Abort, Submit
from loraplex.platform import ledger_writer, open_requests
from loraplex.platform.gateway import GatewayServer
from loraplex.platform.open_requests import OpenRequests
from loraplex.platform.services import Resources
from loraplex.tenants.ledger import UsageRecord, list_usage


@dataclass
class Running:
    """A gateway that serves in this process, and one open stream of its."""

    server: GatewayServer
    serving: asyncio.Task[None]
    resources: Resources
    tenant_id: str
    reply: httpx.Response
    request_id: str

    @property
    def engine(self) -> ScriptedEngine:
        engine = self.resources.engine
        assert isinstance(engine, ScriptedEngine)
        return engine

    def press_ctrl_c(self) -> None:
        self.server.handle_exit(signal.SIGINT, None)

    async def usage(self) -> list[UsageRecord]:
        async with self.resources.database.reader() as session:
            return await list_usage(session, self.tenant_id)


@asynccontextmanager
async def open_stream(resources: Resources) -> AsyncIterator[Running]:
    """A gateway whose client has read one token of a stream that goes on."""
    engine = resources.engine
    assert isinstance(engine, ScriptedEngine)
    engine.answer = None
    tenant, key = await make_tenant(resources, "acme")
    listener = socket.create_server(("127.0.0.1", 0))
    server = GatewayServer(resources, listener)
    started = asyncio.Event()
    serving = asyncio.create_task(server.serve_until_signalled(started.set))
    await started.wait()
    headers = {"authorization": f"Bearer {key}"}
    async with (
        httpx.AsyncClient(base_url=server.url, headers=headers, timeout=30) as client,
        asyncio.TaskGroup() as tasks,
    ):
        request = client.build_request("POST", "/v1/chat/completions", json=chat_body(stream=True))
        sending = tasks.create_task(client.send(request, stream=True))
        request_id = (await engine.submitted()).request_id
        engine.emit(request_id, "x")
        reply = await sending
        try:
            yield Running(server, serving, resources, tenant.id, reply, request_id)
        finally:
            await reply.aclose()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


async def test_the_first_signal_lets_open_requests_end(resources: Resources) -> None:
    async with open_stream(resources) as gateway:
        gateway.press_ctrl_c()
        gateway.engine.emit(gateway.request_id, "y")
        gateway.engine.finish(gateway.request_id)
        assert (await gateway.reply.aread()).endswith(b"data: [DONE]\n\n")
        await gateway.serving
        assert [row.finish_reason for row in await gateway.usage()] == ["stop"]
        assert gateway.server.num_unsettled == 0


async def test_the_second_signal_breaks_off_and_settles(resources: Resources) -> None:
    async with open_stream(with_drain_timeout(resources, 600)) as gateway:
        gateway.press_ctrl_c()
        gateway.press_ctrl_c()
        await assert_broken_off(gateway)


async def test_a_drain_timeout_of_zero_breaks_off_at_once_and_settles(resources: Resources) -> None:
    async with open_stream(with_drain_timeout(resources, 0)) as gateway:
        gateway.press_ctrl_c()
        await assert_broken_off(gateway)


async def test_a_drain_timeout_of_zero_leaves_time_to_settle(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_writer, "MIN_BACKOFF_S", 0.0)
    monkeypatch.setattr(open_requests, "ANSWER_WAIT_S", 0.0)
    database = FailingDatabase(resources.database)
    settle_all = OpenRequests.settle_all

    async def come_back() -> None:
        await database.fail_times(database.num_failures + 20)
        database.error = None

    async def settle_all_while_it_comes_back(self: OpenRequests, *bound_s: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(come_back())
            await settle_all(self, *bound_s)

    monkeypatch.setattr(OpenRequests, "settle_all", settle_all_while_it_comes_back)
    with_database = replace(with_drain_timeout(resources, 0), database=database)
    async with open_stream(with_database) as gateway:
        database.error = AWAY
        gateway.press_ctrl_c()
        await assert_broken_off(gateway)


def with_drain_timeout(resources: Resources, drain_timeout_s: float) -> Resources:
    settings = resources.settings.model_copy(update={"drain_timeout_s": drain_timeout_s})
    return replace(resources, settings=settings)


async def assert_broken_off(gateway: Running) -> None:
    """The client was told, the engine stopped, the usage written, the hold ended."""
    async with asyncio.timeout(30):
        told = await gateway.reply.aread()
        await gateway.serving
    assert b'"code":"engine_unavailable"' in told
    assert gateway.engine.aborted == [gateway.request_id]
    (row,) = await gateway.usage()
    assert (row.finish_reason, row.completion_tokens) == ("error", 1)
    assert (await gateway.resources.quotas.in_use(gateway.tenant_id)).requests == 0
    assert gateway.server.num_unsettled == 0


async def test_a_server_that_is_cancelled_settles_all_the_same(resources: Resources) -> None:
    async with open_stream(resources) as gateway:
        gateway.serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gateway.serving
        assert [row.finish_reason for row in await gateway.usage()] == ["error"]
        with pytest.raises(httpx.ConnectError):
            await httpx.AsyncClient().get(gateway.reply.url)


@dataclass(frozen=True, slots=True)
class Process:
    """A gateway's process over a worker in this one, and one open stream of its."""

    process: asyncio.subprocess.Process
    worker: SimulatedWorker
    aborted: asyncio.Event
    """Set when the worker is told to abort the stream's request."""

    async def end_by_two_signals(self) -> tuple[int, str]:
        """Press Ctrl-C, then end it as a supervisor does; the exit status and the last line."""
        self.process.send_signal(signal.SIGINT)
        self.process.send_signal(signal.SIGTERM)
        await self.aborted.wait()
        self.worker.runner.open()
        assert self.process.stderr is not None
        said = await self.process.stderr.read()
        return await self.process.wait(), said.decode()


@asynccontextmanager
async def open_stream_of_a_process(data_dir: Path, key: str) -> AsyncIterator[Process]:
    address = UnixAddress(data_dir / "worker.sock")
    headers = {"authorization": f"Bearer {key}"}
    async with running(address, model=model_info()) as worker:
        aborted = asyncio.Event()
        put = worker.mailbox.put

        def put_and_note(*messages: Submit | Abort) -> None:
            put(*messages)
            if any(isinstance(message, Abort) for message in messages):
                aborted.set()

        worker.mailbox.put = put_and_note  # type: ignore[method-assign]  # it notes, then puts
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loraplex.platform.cli.main", "gateway", "--port", "0"),
            *("--data-dir", str(data_dir), "--worker-address", str(address)),
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"LORAPLEX_SECRET": PEPPER.decode()},
        )
        assert process.stderr is not None
        try:
            url = await announced(process.stderr)
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as client:
                while (await client.get("/readyz")).status_code != 200:
                    pass  # The gateway connects to the worker while it serves.
                worker.runner.steps.release(4)
                body = chat_body(stream=True, max_tokens=50)
                async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
                    assert reply.status_code == 200
                    yield Process(process, worker, aborted)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_a_process_that_gets_two_signals_settles_and_says_so(resources: Resources) -> None:
    tenant, key = await make_tenant(resources, "acme")
    async with open_stream_of_a_process(resources.settings.data_dir, key) as gateway:
        status, said = await gateway.end_by_two_signals()
    assert said.splitlines()[-1] == "Stopped; all requests were settled."
    assert status == 0
    async with resources.database.reader() as session:
        (row,) = await list_usage(session, tenant.id)
    assert row.finish_reason == "error"
    assert row.completion_tokens > 0


async def test_a_process_that_could_not_settle_says_how_many_and_where_their_usage_is(
    resources: Resources,
) -> None:
    _, key = await make_tenant(resources, "acme")
    async with resources.database.session() as session:
        refusal = "BEGIN SELECT RAISE(ABORT, 'refused'); END"
        await session.execute(text(f"CREATE TRIGGER refuse BEFORE INSERT ON usage {refusal}"))
    async with open_stream_of_a_process(resources.settings.data_dir, key) as gateway:
        status, said = await gateway.end_by_two_signals()
    *log, last = said.splitlines()
    assert "not settled: 1;" in last
    assert status == 1
    lines = [json.loads(line) for line in log if line.startswith("{")]
    (usage,) = [line["usage"] for line in lines if line["message"] == "usage is not in the ledger"]
    assert usage["completion_tokens"] > 0
