"""A worker in this process, whole but for its settings: a tiny model, its stream, a client."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from tests.engine.simulated_worker import MODEL

from loraplex.adapters import placement
from loraplex.adapters.checkpoint import inspect
from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.weights import AdapterWeights, VerifiedAdapter
from loraplex.engine.claim import claimed
from loraplex.engine.client import Security, StreamClient
from loraplex.engine.core import StepReport
from loraplex.engine.frames import UnixAddress
from loraplex.engine.journal import Journal
from loraplex.engine.loop import EngineLoop
from loraplex.engine.memory import PoolSizes
from loraplex.engine.model import export_tokenizer
from loraplex.engine.protocol import PROTOCOL_VERSION, SelfTest, Welcome
from loraplex.engine.runner import ModelRunner
from loraplex.engine.self_test.dense import DenseReference
from loraplex.engine.self_test.metrics import SelfTestMetrics
from loraplex.engine.self_test.peft_oracle import PeftOracle, PeftSubject
from loraplex.engine.self_test.served import ServedPath
from loraplex.engine.self_test.verifier import VerifiedModel, Verifier
from loraplex.engine.stored_adapters import StoredAdapters
from loraplex.engine.stream import StreamServer
from loraplex.platform.settings import Settings
from loraplex.platform.worker import compose_engine

NUM_BLOCKS, BLOCK_SIZE = 200, 16


@dataclass
class Options:
    """How the worker differs from a plain one."""

    spoil: Callable[[AdapterWeights], AdapterWeights] = lambda weights: weights
    """Done to what the served path loads."""
    peft: dict[str, object] = field(default_factory=dict)
    """Arguments of `PeftOracle`."""
    patience_s: float = 60.0
    adapter_bytes: int = 100_000_000


@dataclass(frozen=True, slots=True)
class _Spoiled(StoredAdapters):
    """The adapters of a store, or what becomes of them on the served path."""

    spoil: Callable[[AdapterWeights], AdapterWeights] = lambda placed: placed

    def place(self, on_host: VerifiedAdapter, progress: LoadProgress) -> AdapterWeights:
        dtype = self.runner.model.dtype
        placed = placement.place(on_host, dtype=dtype, device="cpu", progress=progress)
        return self.runner.locate(self.spoil(placed))


class World:
    """The parts of the worker."""

    engine_thread = "engine"

    def __init__(self, runner: ModelRunner, folder: Path, options: Options) -> None:
        model = runner.model
        settings = Settings(data_dir=folder, block_size=BLOCK_SIZE, max_step_tokens=64)
        sizes = PoolSizes(
            num_blocks=NUM_BLOCKS,
            kv_bytes=0,
            adapter_bytes=options.adapter_bytes,
            max_model_len=model.max_model_len,
        )
        parts = compose_engine(settings, model, runner, sizes, export_tokenizer(model.path)[0])
        adapters = parts.adapters
        self.model, self.store, self.mailbox = model, adapters.store, parts.mailbox
        self.transfers, self.intake = parts.transfers, parts.intake
        self.transfers._source = _Spoiled(adapters.store, runner, spoil=options.spoil)
        self.registry = CollectorRegistry()
        subject = PeftSubject(model.path, model.config.dtype, 1_000_000, threads=1)
        self.peft = PeftOracle(subject, **options.peft)
        self.served = ServedPath(parts.intake.put)
        self.verifier = Verifier(
            VerifiedModel(
                model.vocab_size,
                model.max_model_len,
                model.config.dtype,
                adapters.plain,
                adapters.store.open,
            ),
            self.served,
            DenseReference(model, self.mailbox.put_aside),
            self.peft,
            SelfTestMetrics(self.registry).observe,
            options.patience_s,
        )
        welcome = Welcome(protocol=PROTOCOL_VERSION, epoch="1", model=MODEL)
        self.journal = Journal(folder / "journal", 7, 1000, time.time)
        self.server = StreamServer(
            parts.intake, welcome, Security(), lambda: "", self.verifier.verify, self.journal
        )
        self.reports: list[StepReport] = []
        self.ended: asyncio.Queue[str] = asyncio.Queue()
        """Requests that have had their last event."""
        self._asyncio_loop = asyncio.get_running_loop()
        self.loop = EngineLoop(parts.engine, self.mailbox, self._publish)
        self.client: StreamClient

    def _publish(self, report: StepReport) -> None:
        self._asyncio_loop.call_soon_threadsafe(self._take, report)

    def _take(self, report: StepReport) -> None:
        self.reports.append(report)
        self.server.publish(report)
        self.served.publish(report)
        for request_id in report.events.ended():
            self.ended.put_nowait(request_id)

    def put(self, folder: Path) -> str:
        """Store an adapter; return its digest."""
        checkpoint = inspect(folder, self.model.shapes)
        self.store.put(checkpoint)
        return checkpoint.digest

    async def verify(self, folder: Path, *, may_use_peft: bool = False) -> SelfTest:
        """Test an adapter as its upload does."""
        return await self.client.verify("acme", self.put(folder), may_use_peft=may_use_peft)

    def metrics(self) -> str:
        return generate_latest(self.registry).decode()


@asynccontextmanager
async def running(
    runner: ModelRunner, folder: Path, options: Options | None = None
) -> AsyncIterator[World]:
    """A worker whose store and socket lie in `folder`, with a client, for the block."""
    address = UnixAddress(folder / "w.sock")
    world = World(runner, folder, options or Options())
    world.client = StreamClient(address, Security(), 1000)
    with claimed(address):
        await world.server.start(address)
        thread = threading.Thread(target=world.loop.run, name=world.engine_thread)
        thread.start()
        world.client.start()
        try:
            async with asyncio.timeout(60):
                await world.client.wait_connected()
            yield world
        finally:
            await world.client.close()
            world.loop.stop()
            await asyncio.to_thread(thread.join)
            world.intake.close()
            world.transfers.close()
            await world.server.close()
            await world.journal.close()
            await world.peft.close()
