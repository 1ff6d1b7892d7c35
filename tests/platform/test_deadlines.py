"""Deadlines for first tokens, over HTTP: what is taken, and what is told of one that is missed."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import openai
import pytest
from tests.engine.simulated_worker import SimulatedWorker, running, socket_path
from tests.platform.conftest import Gateway, chat_body, make_tenant
from tests.platform.tiny_model import model_info

from loraplex.engine.client import StreamClient
from loraplex.engine.errors import DeadlineUnreachable
from loraplex.engine.frames import Security, UnixAddress
from loraplex.engine.mailbox import Mailbox
from loraplex.engine.protocol import Abort, Submit, Why
from loraplex.platform.app import create_app
from loraplex.platform.services import Resources
from loraplex.tenants.ledger import UsageRecord, list_usage

HEADER = "x-loraplex-ttft-deadline-ms"


async def sent_deadline(gateway: Gateway, key: str | None = None, **headers: str) -> float | None:
    """What the engine is told."""
    sent = headers if key is None else headers | {"authorization": f"Bearer {key}"}
    reply = await gateway.client.post(
        "/v1/chat/completions",
        json=chat_body(),
        headers={name.replace("_", "-"): value for name, value in sent.items()},
    )
    assert reply.status_code == 200, reply.text
    return (await gateway.engine.submitted()).ttft_deadline_ms


async def test_a_request_without_the_header_has_no_deadline(gateway: Gateway) -> None:
    assert await sent_deadline(gateway) is None


async def test_the_header_names_the_deadline(gateway: Gateway) -> None:
    assert await sent_deadline(gateway, x_loraplex_ttft_deadline_ms="2000") == 2000.0


@pytest.mark.parametrize(
    "value", ["0", "-5", "1.5", "2s", "", "٣", "9" * 30, "3600001", "0000000013600000000", "None"]
)
async def test_a_malformed_deadline_is_refused_by_name(gateway: Gateway, value: str) -> None:
    reply = await gateway.client.post(
        "/v1/chat/completions", json=chat_body(), headers={HEADER: value.encode()}
    )
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, HEADER)
    assert "milliseconds" in error["message"]
    await gateway.assert_all_settled()


async def test_two_deadlines_are_refused(gateway: Gateway) -> None:
    reply = await gateway.client.post(
        "/v1/chat/completions", json=chat_body(), headers=[(HEADER, "5000"), (HEADER, "1")]
    )
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, HEADER)


async def test_a_tenants_deadline_holds_for_requests_that_name_none(gateway: Gateway) -> None:
    _, key = await gateway.make_tenant("hurried", ttft_deadline_ms=800)
    assert await sent_deadline(gateway, key) == 800.0
    assert await sent_deadline(gateway, key, x_loraplex_ttft_deadline_ms="50") == 50.0
    assert await sent_deadline(gateway, key, x_loraplex_ttft_deadline_ms="none") is None


async def test_the_operator_sets_a_tenants_deadline(
    gateway: Gateway, admin: httpx.AsyncClient
) -> None:
    reply = await admin.patch("/tenants/acme", json={"limits": {"ttft_deadline_ms": 700}})
    assert reply.json()["limits"]["ttft_deadline_ms"] == 700
    assert await sent_deadline(gateway) == 700.0
    refused = await admin.patch("/tenants/acme", json={"limits": {"ttft_deadline_ms": 0}})
    assert refused.status_code == 400
    assert "ttft_deadline_ms must be 1 to" in refused.text
    await admin.patch("/tenants/acme", json={"limits": {"ttft_deadline_ms": None}})
    assert await sent_deadline(gateway) is None


@pytest.mark.parametrize("stream", [False, True])
async def test_a_missed_deadline_is_a_503_that_says_when_to_come_back(
    gateway: Gateway, stream: bool
) -> None:
    error = DeadlineUnreachable("the first token would come too late", 2.25)
    gateway.engine.answer = lambda engine, i: engine.reject(i, error)
    reply = await gateway.chat(stream=stream)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "deadline_unreachable")
    assert (reply.headers["retry-after"], reply.headers["retry-after-ms"]) == ("3", "2250")
    assert "x-should-retry" not in reply.headers
    assert await gateway.usage() == []
    await gateway.assert_all_settled()


async def test_one_that_no_machine_could_meet_is_not_to_be_tried_again(gateway: Gateway) -> None:
    error = DeadlineUnreachable("its prompt alone takes longer", None)
    gateway.engine.answer = lambda engine, i: engine.reject(i, error)
    reply = await gateway.chat()
    assert (reply.status_code, reply.headers["x-should-retry"]) == (503, "false")
    assert "retry-after" not in reply.headers


class CountingMailbox(Mailbox):
    """Tells tests what has been put into it."""

    def __init__(self) -> None:
        super().__init__()
        self.num_put = 0
        self.changed = asyncio.Event()

    def put(self, *messages: Submit | Abort | Why) -> None:
        super().put(*messages)
        self.num_put += sum(isinstance(message, Submit) for message in messages)
        self.changed.set()


@dataclass
class Platform:
    """A gateway over a worker in this process, and the client of OpenAI."""

    worker: SimulatedWorker
    client: openai.AsyncOpenAI
    resources: Resources
    tenant_id: str

    def ask(self, deadline_ms: int | None, *, stream: bool = False) -> asyncio.Task:
        return asyncio.ensure_future(
            self.client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "hello"}],
                max_tokens=30,
                stream=stream,
                extra_body={"ignore_eos": True},
                extra_headers={} if deadline_ms is None else {HEADER: str(deadline_ms)},
            )
        )

    async def arrived(self, count: int) -> None:
        """Return when so many requests are in the engine, after a few more steps."""
        async with asyncio.timeout(30):
            while self.worker.mailbox.num_put < count:
                self.worker.mailbox.changed.clear()
                await self.worker.mailbox.changed.wait()
        are_taken = False
        while not are_taken:
            # What was taken before a step ends is in the scheduler when it has ended.
            are_taken = not self.worker.mailbox._messages
            self.worker.runner.steps.release()
            await self.worker.step_where(lambda report: report.plan.num_requests)

    async def usage(self) -> list[UsageRecord]:
        async with self.resources.database.reader() as session:
            return await list_usage(session, self.tenant_id)


@pytest.fixture
async def platform(
    resources: Resources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Platform]:
    """Its steps take a millisecond a token, by prediction, and run when a test lets them."""
    tenant, key = await make_tenant(resources, "acme")
    monkeypatch.setattr("tests.engine.simulated_worker.Mailbox", CountingMailbox)
    address = UnixAddress(socket_path(tmp_path))
    async with running(address, model=model_info()) as worker:
        worker.scheduler.first_tokens._costs.num_steps = 1000
        engine = StreamClient(address, Security(), max_events=1000)
        engine.start()
        await engine.wait_connected()
        app = create_app(replace(resources, engine=engine))
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http,
            openai.AsyncOpenAI(
                base_url="http://gateway/v1", api_key=key, http_client=http, max_retries=0
            ) as client,
        ):
            yield Platform(worker, client, resources, tenant.id)
        await engine.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_through_the_engine_who_would_be_late_is_refused_at_once_and_others_run(
    platform: Platform, stream: bool
) -> None:
    with pytest.raises(openai.InternalServerError) as never:
        await platform.ask(2, stream=stream)
    assert (never.value.status_code, never.value.code) == (503, "deadline_unreachable")
    assert never.value.response.headers["x-should-retry"] == "false"
    others = [platform.ask(None) for _ in range(10)]
    await platform.arrived(11)
    late = platform.ask(40, stream=stream)
    await platform.arrived(12)
    platform.worker.runner.open()
    with pytest.raises(openai.InternalServerError) as refused:
        await late
    assert refused.value.code == "deadline_unreachable"
    assert int(refused.value.response.headers["retry-after"]) >= 1
    await asyncio.gather(*others)
    answer = await platform.ask(60_000)
    assert answer.usage.completion_tokens == 30
    assert len(await platform.usage()) == 11
    in_use = await platform.resources.quotas.in_use(platform.tenant_id)
    assert (in_use.requests, in_use.tokens) == (0, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_through_the_engine_who_waits_too_long_is_refused_and_pays_nothing(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    others = [platform.ask(None) for _ in range(8)]
    await platform.arrived(8)
    waits = platform.ask(1_000_000, stream=stream)
    await platform.arrived(9)
    monkeypatch.setattr(platform.worker.engine, "_clock", lambda: 1000.0)
    platform.worker.runner.open()
    with pytest.raises(openai.InternalServerError, match="waited") as refused:
        await waits
    assert (refused.value.status_code, refused.value.code) == (503, "deadline_unreachable")
    await asyncio.gather(*others)
    assert len(await platform.usage()) == 8
    in_use = await platform.resources.quotas.in_use(platform.tenant_id)
    assert (in_use.requests, in_use.tokens) == (0, 0)
