"""What the operator promises of the adapters' memory reaches the worker, and holds there."""

from collections.abc import AsyncIterator
from pathlib import Path
from threading import Event

import pytest
from tests.contracts.scripted_worker import ScriptedWorker
from tests.engine import build
from tests.engine.simulated_runner import SimulatedRunner
from tests.engine.simulated_worker import SimulatedWorker, running, socket_path
from tests.engine.test_stream import collect, connected
from tests.platform.tiny_model import model_info

from loraplex.adapters.residency import Residency, State
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.core import Engine
from loraplex.engine.errors import AdapterOverCap, RequestRefused
from loraplex.engine.frames import UnixAddress
from loraplex.engine.mailbox import Mailbox
from loraplex.engine.residency_protocol import Pin, Pins
from loraplex.engine.transfers import Transfers

# The simulated worker has 10 bytes for adapters; each takes as many as its digest is long.
KEY = AdapterKey("t", "xxx")


@pytest.fixture
def address(tmp_path: Path) -> UnixAddress:
    return UnixAddress(socket_path(tmp_path))


@pytest.fixture
async def worker(address: UnixAddress) -> AsyncIterator[SimulatedWorker]:
    async with running(address) as worker:
        worker.runner.open()
        yield worker


def pins(version: int, *digests: str, **changes: object) -> Pins:
    return Pins(version=version, pinned=tuple(Pin("t", digest) for digest in digests), **changes)


async def test_what_is_pinned_is_loaded_and_stays(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    async with connected(address) as client:
        client.pin(pins(1, "xxx"))
        await worker.step_where(lambda report: bool(report.arrivals))
        assert worker.residency.state(KEY) is State.RESIDENT
        for digest in ("1234567", "abcdefg", "7654321"):
            await collect(client, build.submit(digest, adapter=digest, tenant="u"))
        assert worker.residency.state(KEY) is State.RESIDENT
        client.pin(pins(2))
        for digest in ("12345678", "87654321"):
            await collect(client, build.submit(digest, adapter=digest, tenant="u"))
        assert worker.residency.state(KEY) is State.ABSENT


async def test_an_older_snapshot_changes_nothing(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    async with connected(address) as client, connected(address) as other:
        client.pin(pins(5, "xxx"))
        await worker.step_where(lambda report: bool(report.arrivals))
        other.pin(pins(4))
        report = await other.residency()
        assert report is not None
        assert report.pins_version == 5
        assert [(row.adapter, row.why) for row in report.adapters] == [("xxx", "pinned")]


async def test_pins_that_would_block_others_are_refused_and_shown(
    worker: SimulatedWorker, address: UnixAddress, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(address) as client:
        client.pin(pins(1, "xxx", "yyy", floors={"u": 9}, host_floors={"v": 9}))
        report = await client.residency()
        assert report is not None
        assert report.refused_pins == (Pin("t", "yyy"),)
        assert (report.refused_floors, report.refused_host_floors) == (("u",), ("v",))
        assert "tenant v has no floor of the host" in caplog.text
        assert "adapter yyy is not pinned: pins and floors may take 50%" in caplog.text
        tokens, _ = await collect(client, build.submit("a", adapter="1234567", tenant="u"))
        assert len(tokens) == 4


async def test_what_cannot_be_read_is_pinned_without_asking_for_it_again_and_again(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    async with connected(address) as client:
        client.pin(pins(1, "bad"))
        await worker.step_where(lambda report: bool(report.arrivals))
        for request_id in "abc":
            await collect(client, build.submit(request_id))
        assert worker.residency.prefetched.num_started == 1


async def test_a_request_whose_adapter_no_longer_fits_what_is_promised_is_told_so(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    async with connected(address) as client:
        client.pin(pins(1, floors={"u": 5}))
        with pytest.raises(RequestRefused, match="6 bytes of the worker's memory, more than can"):
            await collect(client, build.submit("a", adapter="123456"))
        client.pin(pins(2, caps={"t": 2}))
        with pytest.raises(AdapterOverCap, match=r"3 bytes .* hold 2 \(adapter_cap_bytes\)"):
            await collect(client, build.submit("b", adapter="xxx"))
        await collect(client, build.submit("c", adapter="123456", tenant="u"))


def test_a_request_that_waits_for_memory_fails_when_that_is_promised_to_others() -> None:
    woken, mailbox, residency = Event(), Mailbox(), Residency(10)
    transfers = Transfers(build.Source(str), woken.set)
    scheduler = build.scheduler(build.config(), residency)
    runner = SimulatedRunner(16, 4)
    engine = Engine(mailbox, scheduler, residency, transfers, runner, build.sizes, lambda: 0.0)
    mailbox.put(build.submit("runs", max_tokens=40, adapter="12345678", tenant="u"))
    engine.step()
    assert woken.wait(10)
    engine.step()
    mailbox.put(build.submit("waits", adapter="abcdefg"), build.submit("base"))
    assert not engine.step().events.failed
    mailbox.put(pins(1, floors={"v": 5}))
    (failed,) = engine.step().events.failed
    assert failed.request_id == "waits"
    assert "does not fit any more" in failed.message
    while scheduler.has_work:
        assert not engine.step().events.failed
    scheduler.check()
    transfers.close()


async def test_the_report_says_what_is_where_and_why(
    worker: SimulatedWorker, address: UnixAddress
) -> None:
    async with connected(address) as client:
        await collect(client, build.submit("a", adapter="xxx"))
        report = await client.residency()
        assert report is not None
        assert (report.device.capacity_bytes, report.device.held_bytes) == (10, 3)
        (row,) = report.adapters
        assert (row.tenant, row.adapter, row.tier, row.why) == ("t", "xxx", "device", "kept")
        assert (row.leases, row.num_waiting, row.loaded) == (0, 0, None)


async def test_each_worker_that_connects_is_told_what_is_pinned(tmp_path: Path) -> None:
    worker = ScriptedWorker(tmp_path / "w.sock", model_info(), 64)
    pinned = pins(3, "xxx", floors={"t": 5}, caps={"t": 9})
    worker.client.pin(pinned)
    for _ in range(2):
        worker.pins = None
        await worker.start()
        await worker.settled()
        assert worker.pins == pinned
        await worker.stop()
