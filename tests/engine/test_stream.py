"""The stream between gateway and worker, both ends real, over a simulated model."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
import trustme
from tests.engine import build
from tests.engine.simulated_runner import expected_output
from tests.engine.simulated_worker import SimulatedWorker, first_token, running

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.claim import claimed
from loraplex.engine.client import StreamClient
from loraplex.engine.errors import (
    AdapterUnfit,
    AddressInUse,
    EngineOverloaded,
    EngineUnavailable,
    RequestFailed,
    RequestRefused,
)
from loraplex.engine.frames import Address, Security, TcpAddress, UnixAddress
from loraplex.engine.protocol import Finished, Sampling, Submit, Tokens


@pytest.fixture
def address(tmp_path: Path) -> UnixAddress:
    return UnixAddress(tmp_path / "w.sock")


@pytest.fixture
async def worker(address: UnixAddress) -> AsyncIterator[SimulatedWorker]:
    async with running(address) as worker:
        yield worker


@asynccontextmanager
async def connected(
    address: Address, security: Security | None = None, max_events: int = 1000
) -> AsyncIterator[StreamClient]:
    client = StreamClient(address, security or Security(), max_events)
    client.start()
    try:
        async with asyncio.timeout(30):
            await client.wait_connected()
            yield client
    finally:
        await client.close()


async def collect(client: StreamClient, submit: Submit) -> tuple[list[int], Finished]:
    token_ids: list[int] = []
    async for event in client.generate(submit):
        if isinstance(event, Tokens):
            assert event.sequence == len(token_ids)
            token_ids += event.ids
        else:
            return token_ids, event
    raise AssertionError("the stream ended without a Finished")


async def test_requests_of_two_gateways_share_steps_and_each_gets_its_own_tokens(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    submits = [build.submit(f"r{i}", 3 + i, 300, adapter=[None, "x", "y"][i % 3]) for i in range(6)]
    async with connected(address) as one, connected(address) as two:
        ends = [collect((one, two)[i % 2], submit) for i, submit in enumerate(submits)]
        gathered = asyncio.gather(*ends)
        num_adapters = 0
        while num_adapters < 2:  # step by step, so that none has ended before all have come
            worker.runner.steps.release(1)
            num_adapters = (await worker.step_where(lambda r: r.plan.chunks)).plan.num_adapters
        worker.runner.open()
        results = await gathered
    for submit, (token_ids, finished) in zip(submits, results, strict=True):
        adapter = submit.adapter and AdapterKey("t", submit.adapter)
        assert token_ids == expected_output(submit.prompt, adapter, 300, build.EOS)
        assert finished.usage.completion_tokens == len(token_ids)


async def test_an_abort_answers_with_what_ran(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    worker.runner.steps.release(2)
    async with connected(address) as client:
        stream = client.generate(build.submit("a", max_tokens=4000))
        await first_token(stream)
        ending = asyncio.create_task(client.abort("a"))
        ended = False
        while not ended:
            worker.runner.steps.release(1)
            report = await worker.step_where(lambda report: report.plan.chunks or report.events)
            ended = bool(report.events.finished)
        finished = await ending
        assert finished is not None
        assert finished.reason == "abort"
        assert finished.usage.prompt_tokens == 3
        await stream.aclose()


async def test_a_stream_that_is_closed_early_is_aborted_and_its_usage_can_be_fetched(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    worker.runner.open()
    async with connected(address) as client:
        async with aclosing(client.generate(build.submit("a", max_tokens=4000))) as stream:
            await first_token(stream)
        await worker.step_where(lambda report: report.events.finished)
        finished = await client.abort("a")
    assert finished is not None
    assert 1 <= finished.usage.completion_tokens < 4000


async def test_when_a_gateway_leaves_the_worker_frees_its_requests(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    worker.runner.steps.release(1)
    async with connected(address) as client:
        stream = client.generate(build.submit("a", max_tokens=4000))
        await first_token(stream)
    worker.runner.open()
    report = await worker.step_where(lambda report: report.events.finished)
    assert report.events.finished[0].reason == "abort"
    assert worker.scheduler.num_free_blocks == 2048
    await stream.aclose()


async def test_when_the_worker_leaves_open_requests_end_with_an_error_and_the_next_worker_is_found(
    address: UnixAddress,
) -> None:
    async with running(address) as worker:
        client = StreamClient(address, Security(), 1000)
        client.start()
        await client.wait_connected()
        task = asyncio.create_task(collect(client, build.submit("a")))
        await asyncio.to_thread(worker.runner.steps.release, 1)
        await worker.step_where(lambda report: report.plan.chunks)
    with pytest.raises(EngineUnavailable):
        await task
    with pytest.raises(EngineUnavailable):
        await collect(client, build.submit("b"))
    async with running(address, epoch="epoch-2") as worker:
        worker.runner.open()
        await client.wait_connected()
        token_ids, _ = await collect(client, build.submit("c"))
        await client.close()
    assert len(token_ids) == 4


async def test_a_slow_reader_loses_its_own_request_and_holds_up_nobody(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    worker.runner.steps.release(1)
    async with connected(address, max_events=10) as client:
        slow = client.generate(build.submit("slow", max_tokens=4000))
        await first_token(slow)
        worker.runner.open()
        ended = asyncio.create_task(
            worker.step_where(
                lambda report: any(f.request_id == "slow" for f in report.events.finished)
            )
        )
        quick, _ = await collect(client, build.submit("quick", max_tokens=5))
        await ended
        assert len(quick) == 5
        with pytest.raises(RequestFailed) as failed:
            async for _ in slow:
                pass
        assert failed.value.code == "slow_client"
        ending = await client.abort("slow")
        assert ending is not None
        assert ending.usage.completion_tokens < 4000


async def test_what_the_scheduler_refuses_reaches_the_caller_as_its_error(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    async with connected(address) as client:
        with pytest.raises(RequestRefused) as refused:
            await collect(client, build.submit("a", num_prompt_tokens=5000))
        assert refused.value.field == "max_tokens"
        with pytest.raises(RequestRefused, match="needs 11 bytes"):
            await collect(client, build.submit("b", adapter="x" * 11))


async def test_an_adapter_that_cannot_be_loaded_fails_its_request_alone(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    worker.runner.open()
    async with connected(address) as client:
        good = asyncio.create_task(collect(client, build.submit("good")))
        with pytest.raises(RequestFailed, match="could not be loaded"):
            await collect(client, build.submit("b", adapter="bad"))
        assert len((await good)[0]) == 4


async def test_a_step_that_raises_fails_its_requests_and_the_worker_goes_on(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    worker.runner.error = RuntimeError("device lost a bit")
    worker.runner.steps.release(1)
    async with connected(address) as client:
        with pytest.raises(RequestFailed, match="the operator's log has the reason"):
            await collect(client, build.submit("a"))
        worker.runner.error = None
        worker.runner.open()
        assert len((await collect(client, build.submit("b")))[0]) == 4
    worker.scheduler.check()


async def test_a_request_id_that_is_open_already_is_refused(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    async with connected(address) as one, connected(address) as two:
        stream = one.generate(build.submit("a"))
        task = asyncio.create_task(first_token(stream))
        await asyncio.to_thread(worker.runner.steps.release, 1)
        await task
        with pytest.raises(RequestRefused, match="open already"):
            await collect(two, build.submit("a"))
        await stream.aclose()


async def test_a_draining_worker_refuses_new_requests_and_ends_the_open_ones(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    async with connected(address) as client:
        task = asyncio.create_task(collect(client, build.submit("a")))
        worker.runner.steps.release(1)
        await worker.step_where(lambda report: report.events.tokens)
        drain = asyncio.create_task(worker.server.drain(30))
        await asyncio.sleep(0)
        with pytest.raises(EngineOverloaded, match="shutting down"):
            await collect(client, build.submit("b"))
        worker.runner.open()
        assert len((await task)[0]) == 4
        assert await drain is True


async def test_a_drain_aborts_what_is_still_open_and_reports_what_ran(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    async with connected(address) as client:
        stream = client.generate(build.submit("a", max_tokens=4000))
        worker.runner.steps.release(1)
        await first_token(stream)
        drain = asyncio.create_task(worker.server.drain(0.01))
        worker.runner.open()
        assert await drain is False
        ending = await client.abort("a")
        assert ending is not None
        assert ending.usage.completion_tokens >= 1
        await stream.aclose()


async def test_a_gateway_without_the_token_is_not_let_in(tmp_path: Path) -> None:
    address = UnixAddress(tmp_path / "w.sock")
    async with running(address, Security(token="right")):
        client = StreamClient(address, Security(token="wrong"), 10)
        client.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.wait_connected()
        await client.close()
        async with connected(address, Security(token="right")) as good:
            assert good.model.name == "simulated"


async def test_bytes_that_are_not_the_protocol_close_that_connection_only(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    worker.runner.open()
    for garbage in (b"\xff\xff\xff\xff", b"\x03\x00\x00\x00abc", b"\x01"):
        reader, writer = await asyncio.open_unix_connection(address.path)
        writer.write(garbage)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
    async with connected(address) as client:
        assert len((await collect(client, build.submit("a")))[0]) == 4


async def test_metrics_of_the_worker_travel_on_the_stream(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    async with connected(address) as client:
        assert await client.metrics() == "steps_total 1\n"
    assert await client.metrics() == ""


async def test_a_second_worker_on_one_socket_is_refused_and_a_dead_ones_socket_is_taken_over(
    address: UnixAddress,
) -> None:
    address.path.write_text("left behind")
    with claimed(address):
        assert not address.path.exists()
        with pytest.raises(AddressInUse, match="another worker"), claimed(address):
            pass
    with claimed(address):
        pass


async def test_between_hosts_the_stream_is_encrypted_and_only_the_pinned_certificate_trusted(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    authority = trustme.CA()
    for name in ("worker", "other"):
        cert = authority.issue_cert("worker.example")
        cert.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        cert.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
    address = TcpAddress("127.0.0.1", unused_tcp_port)
    server = Security("secret", tmp_path / "worker.pem", tmp_path / "worker.key")
    async with running(address, server) as worker:
        worker.runner.open()
        stranger = StreamClient(address, Security("secret", tmp_path / "other.pem"), 10)
        stranger.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await stranger.wait_connected()
        await stranger.close()
        async with connected(address, Security("secret", tmp_path / "worker.pem")) as client:
            assert len((await collect(client, build.submit("a")))[0]) == 4


async def test_an_adapter_whose_load_breaks_in_an_unknown_way_fails_its_request(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    worker.runner.open()
    async with connected(address) as client:
        with pytest.raises(RequestFailed) as failed:
            await collect(client, build.submit("a", adapter="broken"))
    assert failed.value.code == "adapter_load_failed"


async def test_an_adapter_of_another_base_model_fails_its_requests_and_says_why(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    worker.runner.open()
    async with connected(address) as client:
        good = asyncio.create_task(collect(client, build.submit("good", adapter="x")))
        with pytest.raises(AdapterUnfit, match=r"does not fit.*q_proj: is wider") as failed:
            await collect(client, build.submit("a", adapter="unfit"))
        assert failed.value.code == "adapter_mismatch"
        assert len((await good)[0]) == 4


async def test_a_request_that_cannot_be_taken_fails_alone_and_those_behind_it_run(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    worker.runner.open()
    worker.scheduler._new_text = forbid_empty_stops
    sampling = Sampling(max_tokens=4, temperature=0.0, seed=0, stop=("",))
    async with connected(address) as client:
        bad = collect(client, build.submit("bad", sampling=sampling))
        good = collect(client, build.submit("good"))
        failed, (token_ids, _) = await asyncio.gather(bad, good, return_exceptions=True)
    assert isinstance(failed, RequestFailed)
    assert len(token_ids) == 4


def forbid_empty_stops(submit: Submit) -> build.PlainText:
    if "" in submit.sampling.stop:
        raise ValueError("a stop string is empty")
    return build.PlainText(submit)


async def test_a_client_survives_a_connection_that_ends_with_any_error_of_the_network(
    address: UnixAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(address) as worker:
        worker.runner.open()
        client = StreamClient(address, Security(), 1000)
        unreachable = [OSError(113, "No route to host"), TimeoutError(), ConnectionResetError()]
        connect = client._connect

        async def fail_at_first():
            if unreachable:
                raise unreachable.pop()
            return await connect()

        monkeypatch.setattr(client, "_connect", fail_at_first)
        client.start()
        async with asyncio.timeout(30):
            await client.wait_connected()
        assert len((await collect(client, build.submit("a")))[0]) == 4
        await client.close()


async def test_a_stranger_cannot_make_the_worker_hold_a_large_frame(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    reader, writer = await asyncio.open_unix_connection(address.path)
    writer.write((1 << 20).to_bytes(4, "little"))
    assert await reader.read() == b""
    writer.close()
