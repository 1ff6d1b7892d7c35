"""A worker in this process: the real stream, loop, engine and scheduler over a simulated model."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

from tests.engine import build
from tests.engine.simulated_runner import SimulatedRunner

from loraplex.adapters.errors import AdapterMismatch, Problem
from loraplex.adapters.residency import Residency
from loraplex.engine.claim import claimed
from loraplex.engine.core import Engine, StepReport
from loraplex.engine.frames import Address, Security
from loraplex.engine.journal import Journal
from loraplex.engine.loop import EngineLoop
from loraplex.engine.mailbox import Mailbox
from loraplex.engine.plan import StepOutput, StepPlan
from loraplex.engine.protocol import (
    PROTOCOL_VERSION,
    Finished,
    ModelInfo,
    Tokens,
    Verified,
    Verify,
    Welcome,
)
from loraplex.engine.stream import StreamServer
from loraplex.engine.transfers import Transfers

MODEL = ModelInfo(
    name="simulated",
    max_model_len=4096,
    vocab_size=1000,
    tokenizer_json=b"{}",
    chat_template=None,
    special_tokens={},
    dtype="float32",
    device="cpu",
)


class GatedRunner(SimulatedRunner):
    """Runs a step only when the test lets it."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.steps = threading.Semaphore(0)
        self.error: Exception | None = None

    def open(self) -> None:
        """Let all further steps run."""
        self.steps.release(1_000_000)

    def run(self, plan: StepPlan) -> StepOutput:
        assert self.steps.acquire(timeout=120)
        if self.error is not None:
            raise self.error
        return super().run(plan)


class SimulatedWorker:
    """All parts of a worker, open to tests."""

    def __init__(self, security: Security, epoch: str, model: ModelInfo, journal: Path) -> None:
        self.mailbox = Mailbox()
        self.residency = Residency(10)
        self.scheduler = build.scheduler(
            build.config(num_blocks=2048, max_model_len=4096), self.residency
        )
        self.runner = GatedRunner(2048, 4)
        self.transfers = Transfers(build.Source(self._load), self.mailbox.wake)
        self.engine = Engine(
            self.mailbox,
            self.scheduler,
            self.residency,
            self.transfers,
            self.runner,
            build.sizes,
            lambda: 0.0,
        )
        welcome = Welcome(protocol=PROTOCOL_VERSION, epoch=epoch, model=model)
        self.journal = Journal(journal, 7, 1000, time.time)
        self.server = StreamServer(
            self.mailbox, welcome, security, lambda: "steps_total 1\n", self._verify, self.journal
        )
        self.tests_begun: asyncio.Queue[Verify] = asyncio.Queue()
        self.test_ended = asyncio.Event()
        self.reports: asyncio.Queue[StepReport] = asyncio.Queue()
        self.asyncio_loop = asyncio.get_running_loop()
        self.loop = EngineLoop(self.engine, self.mailbox, self._publish)

    async def step_where(self, condition: object) -> StepReport:
        """Wait for a step's report that satisfies `condition`."""
        async with asyncio.timeout(30):
            while not condition(report := await self.reports.get()):
                pass
            return report

    def _publish(self, report: StepReport) -> None:
        self.asyncio_loop.call_soon_threadsafe(self._take, report)

    def _take(self, report: StepReport) -> None:
        self.server.publish(report)
        self.reports.put_nowait(report)

    async def _verify(self, asked: Verify) -> Verified:
        """Begins, and ends only by being ended."""
        self.tests_begun.put_nowait(asked)
        try:
            await asyncio.Event().wait()
        finally:
            self.test_ended.set()
        raise AssertionError

    def _load(self, digest: str) -> object:
        if digest == "bad":
            raise OSError("no such adapter")
        if digest == "broken":
            raise RuntimeError("out of memory")
        if digest == "unfit":
            raise AdapterMismatch(digest, (Problem("q_proj", "", "is wider"),))
        return SimpleNamespace(digest=digest)


@asynccontextmanager
async def running(
    address: Address,
    security: Security | None = None,
    epoch: str = "epoch-1",
    model: ModelInfo = MODEL,
) -> AsyncIterator[SimulatedWorker]:
    """A worker that listens on `address` until the end of the block."""
    with TemporaryDirectory() as folder, claimed(address):
        worker = SimulatedWorker(security or Security(), epoch, model, Path(folder))
        await worker.server.start(address)
        thread = threading.Thread(target=worker.loop.run)
        thread.start()
        try:
            yield worker
        finally:
            worker.loop.stop()
            worker.runner.open()
            await asyncio.to_thread(thread.join)
            worker.transfers.close()
            await worker.server.close()
            await worker.journal.close()


async def first_token(stream: AsyncIterator[Tokens | Finished]) -> None:
    """Take the first event of a request's stream."""
    async for _ in stream:
        return


def socket_path(tmp_path: Path) -> Path:
    """A socket below a test's folder."""
    return tmp_path / "w.sock"
