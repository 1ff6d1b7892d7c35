"""Composition root of the worker process: model, engine, stream."""

import asyncio
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer

from loraplex.adapters.opened_store import open_store
from loraplex.adapters.residency import HostMemory, Residency
from loraplex.adapters.sizes import MAX_HEADS, StoredSizes, sizes_of_head
from loraplex.engine import memory
from loraplex.engine.adapter_metrics import CopyCollector
from loraplex.engine.added_tokens import transcripts
from loraplex.engine.admission import AdmissionPolicy, FirstComeFirstServed
from loraplex.engine.assist.metrics import AssistCollector
from loraplex.engine.assist_port import Assist
from loraplex.engine.batch import StepBatch
from loraplex.engine.claim import claimed
from loraplex.engine.config import SchedulerConfig, Targets
from loraplex.engine.copy_link import CopyLink
from loraplex.engine.core import Engine, StepReport
from loraplex.engine.cost import CostModel
from loraplex.engine.cost_metrics import CostCollector
from loraplex.engine.errors import EngineCrashed
from loraplex.engine.fair_admission import FairAdmission
from loraplex.engine.frames import Address, Security
from loraplex.engine.graph_metrics import GraphCollector
from loraplex.engine.intake import Intake
from loraplex.engine.journal import Journal
from loraplex.engine.journal_metrics import JournalCollector
from loraplex.engine.lengths import OutputLengths
from loraplex.engine.loop import EngineLoop
from loraplex.engine.mailbox import Mailbox
from loraplex.engine.metrics import WorkerMetrics
from loraplex.engine.model import LoadedModel, export_tokenizer
from loraplex.engine.protocol import PROTOCOL_VERSION, ModelInfo, Submit, Welcome
from loraplex.engine.request import Text
from loraplex.engine.runner import ModelRunner
from loraplex.engine.scheduler import Scheduler
from loraplex.engine.stored_adapters import StoredAdapters
from loraplex.engine.stream import StreamServer
from loraplex.engine.transfers import Transfers
from loraplex.platform.base import device_of, load_base
from loraplex.platform.base_record import BaseRecord, told, write_record
from loraplex.platform.fair import fair_settings
from loraplex.platform.settings import Settings
from loraplex.platform.stream import stream_address
from loraplex.platform.worker_assist import num_assistants, num_threads, start_assist
from loraplex.platform.worker_costs import KeptCosts, prepare_costs, subject_of
from loraplex.platform.worker_graphs import record_graphs
from loraplex.platform.worker_memory import pool_sizes
from loraplex.platform.worker_self_tests import SelfTests, compose_self_tests

_log = logging.getLogger(__name__)

SPARE_OPEN = 1024
"""Requests on their way into the engine's queue, or back from it with a refusal."""


@dataclass(frozen=True, slots=True)
class Worker:
    """The parts of a worker that its process runs."""

    loop: EngineLoop
    intake: Intake
    server: StreamServer
    self_tests: SelfTests
    transfers: Transfers
    costs: KeptCosts
    journal: Journal
    assist: Assist | None


@dataclass(frozen=True, slots=True)
class EngineParts:
    """An engine with what it was made of."""

    engine: Engine[StepBatch]
    mailbox: Mailbox
    intake: Intake
    """In front of the mailbox; without it the engine reads what it does not know itself."""
    scheduler: Scheduler
    residency: Residency
    transfers: Transfers
    adapters: StoredAdapters


class Lifeline:
    """Ends this process when its standard input does, that is when its parent is gone."""

    def __init__(self) -> None:
        self._on_end: Callable[[], object] = partial(os._exit, 0)
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def end_with(self, on_end: Callable[[], object]) -> None:
        """From now on end by calling `on_end`; before that, while a model loads, end at once."""
        self._on_end = on_end

    def _watch(self) -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        self._on_end()


def run_worker(settings: Settings, *, stop_with_parent: bool) -> None:
    """Run a worker until it is told to stop.

    `stop_with_parent` ends it when standard input ends, that is when the parent is gone, however
    it died. Raises EngineError, DemoModelMissing where it cannot start, EngineCrashed later.
    """
    address, security = stream_address(settings)
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lifeline = Lifeline() if stop_with_parent else None
    with claimed(address):
        torch.set_num_threads(settings.threads or num_threads(settings, device_of(settings)))
        model = _load(settings)
        asyncio.run(_serve(settings, model, address, security, lifeline))


def _load(settings: Settings) -> LoadedModel:
    model = load_base(settings)
    record = BaseRecord(model.config.name, model.path.resolve(), told(model.shapes))
    write_record(settings.base_record_path, record)
    return model


async def _serve(
    settings: Settings,
    model: LoadedModel,
    address: Address,
    security: Security,
    lifeline: Lifeline | None,
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if lifeline is not None:
        lifeline.end_with(lambda: loop.call_soon_threadsafe(stop.set))
    worker = await _compose(settings, model, security, stop)
    await worker.server.start(address)
    _log.info("serving %s on %s", model.config.name, address)
    crash: list[BaseException] = []
    thread = threading.Thread(
        target=partial(_run_engine, worker.loop, crash, loop, stop), name="engine"
    )
    thread.start()
    syncing = asyncio.create_task(worker.journal.keep_synced())
    await stop.wait()
    if not crash and not await worker.server.drain(settings.drain_timeout_s):
        _log.warning("some requests were still open after %s s", settings.drain_timeout_s)
    worker.loop.stop()
    await asyncio.to_thread(thread.join)
    await asyncio.to_thread(worker.costs.close)
    worker.transfers.close()
    if worker.assist is not None:
        await asyncio.to_thread(worker.assist.close)
    await worker.server.close()
    worker.journal.stop()
    await syncing
    await worker.journal.close()
    await asyncio.to_thread(worker.intake.close)
    await worker.self_tests.close()
    if crash:
        raise EngineCrashed from crash[0]


async def _compose(
    settings: Settings, model: LoadedModel, security: Security, stop: asyncio.Event
) -> Worker:
    loop = asyncio.get_running_loop()
    sizes = pool_sizes(settings, model)
    tokenizer_json, chat_template, special_tokens = export_tokenizer(model.path)
    assist = await asyncio.to_thread(start_assist, settings, model)
    runner = ModelRunner(
        model, sizes.num_blocks, settings.block_size, sizes.num_host_blocks, assist
    )
    if settings.cuda_graphs:
        await asyncio.to_thread(record_graphs, runner)
    config = scheduler_config(settings, sizes, model.vocab_size)
    costs = await asyncio.to_thread(
        prepare_costs, settings, runner, config, sizes.adapter_bytes, stop.is_set
    )
    parts = compose_engine(settings, model, runner, sizes, tokenizer_json, costs.model)
    mailbox = parts.mailbox
    registry = CollectorRegistry()
    registry.register(CostCollector(costs.model))
    registry.register(CopyCollector(parts.transfers.link))
    registry.register(AssistCollector(assist.watch if assist else None))
    registry.register(GraphCollector(runner.num_steps))
    metrics = WorkerMetrics(registry, parts.scheduler, parts.residency)
    info = ModelInfo(
        name=model.config.name,
        max_model_len=sizes.max_model_len,
        vocab_size=model.vocab_size,
        tokenizer_json=tokenizer_json,
        chat_template=chat_template,
        special_tokens=special_tokens,
        dtype=model.config.dtype,
        device=model.config.device,
        shapes=told(model.shapes),
    )
    welcome = Welcome(protocol=PROTOCOL_VERSION, epoch=secrets.token_hex(8), model=info)
    self_tests = compose_self_tests(model, parts.adapters, mailbox, parts.intake, registry)
    verify = self_tests.verifier.verify
    journal = _journal(settings, registry)
    server = StreamServer(parts.intake, welcome, security, metrics.render, verify, journal)

    def publish(report: StepReport) -> None:
        metrics.observe(report)
        _log_step(report)
        loop.call_soon_threadsafe(server.publish, report)
        loop.call_soon_threadsafe(self_tests.served.publish, report)
        if (saved := costs.due(time.monotonic())) is not None:
            costs.write(saved)

    return Worker(
        EngineLoop(parts.engine, mailbox, publish),
        parts.intake,
        server,
        self_tests,
        parts.transfers,
        costs,
        journal,
        assist,
    )


def _journal(settings: Settings, registry: CollectorRegistry) -> Journal:
    most_open = settings.max_running + settings.max_waiting_requests + SPARE_OPEN
    journal = Journal(
        settings.resolved_journal_dir, settings.journal_days, most_open, clock=time.time
    )
    registry.register(JournalCollector(journal))
    return journal


def compose_engine(
    settings: Settings,
    model: LoadedModel,
    runner: ModelRunner,
    sizes: memory.PoolSizes,
    tokenizer_json: bytes,
    costs: CostModel | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> EngineParts:
    """Put an engine together over a runner; its adapters are those of the data directory. Without
    `costs` it knows nothing of step times yet; `clock` is in seconds."""
    mailbox = Mailbox()
    runner.has_news = lambda: mailbox.has_news
    store = open_store(settings.adapters_url, settings.data_dir, settings.adapter_cache_bytes)
    # Adapters of one recipe have one head, and their sizes follow from it alone.
    sizes_of = lru_cache(MAX_HEADS)(
        partial(sizes_of_head, base=model.shapes, bytes_per_element=model.dtype.itemsize)
    )
    adapter_sizes = StoredSizes(lambda digest: sizes_of(store.head(digest)))
    host = HostMemory(sizes.host_adapter_bytes, adapter_sizes.host_bytes)
    residency = Residency(sizes.adapter_bytes, host=host, clock=clock)
    costs = costs or CostModel(subject_of(runner))
    config = scheduler_config(settings, sizes, model.vocab_size)
    num = 0 if runner.assist is None else num_assistants(settings, model.config.device)
    config = replace(config, copy_ms_per_block=runner.measure_copy_ms(), num_assistants=num)
    stored = StoredAdapters(store, runner, shares=num > 0)
    transfers = Transfers(stored, mailbox.wake, link=_copy_link(settings))
    tokenizer = Tokenizer.from_buffer(tokenizer_json)
    new_text = transcripts(tokenizer, transfers.resident, transfers.arriving)
    scheduler = _scheduler(settings, model, config, residency, new_text, costs)
    told = adapter_sizes.told
    engine = Engine(mailbox, scheduler, residency, transfers, runner, told, clock)
    intake = Intake(mailbox, adapter_sizes)
    return EngineParts(engine, mailbox, intake, scheduler, residency, transfers, stored)


def _copy_link(settings: Settings) -> CopyLink:
    limit = settings.adapter_copy_bytes_per_s
    told = "as fast as memory goes" if limit is None else f"by {limit / 1e6:g} MB a second at most"
    _log.info("adapters are copied to the device %s", told)
    return CopyLink(limit)


def scheduler_config(
    settings: Settings, sizes: memory.PoolSizes, vocab_size: int
) -> SchedulerConfig:
    """Caps and targets of a worker's scheduler."""
    return SchedulerConfig(
        num_blocks=sizes.num_blocks,
        block_size=settings.block_size,
        max_step_tokens=settings.max_step_tokens,
        max_running=settings.max_running,
        max_waiting_requests=settings.max_waiting_requests,
        max_waiting_tokens=settings.max_waiting_tokens,
        max_model_len=sizes.max_model_len,
        vocab_size=vocab_size,
        prefix_cache=settings.prefix_cache,
        num_host_blocks=sizes.num_host_blocks,
        targets={
            "priority": Targets(settings.priority_ttft_ms, settings.priority_tpot_ms),
            "default": Targets(settings.default_ttft_ms, settings.default_tpot_ms),
        },
        max_transfer_bytes=settings.max_transfer_bytes,
        prefetch=settings.prefetch,
        route=settings.adapter_route,
        kv_forecast=True,
        kv_block_bytes=sizes.kv_bytes // sizes.num_blocks,
        lent_block_bytes=sizes.lent_block_bytes,
        min_blocks=sizes.min_blocks,
    )


def _scheduler(
    settings: Settings,
    model: LoadedModel,
    config: SchedulerConfig,
    residency: Residency,
    new_text: Callable[[Submit], Text],
    costs: CostModel,
) -> Scheduler:
    # A configuration may name ends that the model has no logits for.
    eos = frozenset(token_id for token_id in model.eos_token_ids if token_id < model.vocab_size)
    policy = admission_policy(settings)
    return Scheduler(config, residency, policy, new_text, eos, costs, OutputLengths())


def admission_policy(settings: Settings) -> AdmissionPolicy:
    """Who runs first."""
    if settings.scheduling == "fcfs":
        return FirstComeFirstServed()
    return FairAdmission(fair_settings(settings))


def _run_engine(
    engine_loop: EngineLoop,
    crash: list[BaseException],
    loop: asyncio.AbstractEventLoop,
    stop: asyncio.Event,
) -> None:
    try:
        engine_loop.run()
    except Exception as error:  # noqa: BLE001  the process ends with it, and raises it
        crash.append(error)
        loop.call_soon_threadsafe(stop.set)


def _log_step(report: StepReport) -> None:
    plan = report.plan
    if not plan.num_requests:
        return
    fields = {
        "step": plan.step,
        "requests": plan.num_requests,
        "tokens": plan.num_tokens,
        "adapters": plan.num_adapters,
        "preempted": plan.num_preempted,
        "swapped": sum(preempted.is_swapped for preempted in plan.preempted),
        "plan_ms": round(report.plan_s * 1e3, 3),
        "build_ms": round(report.build_s * 1e3, 3),
        "run_ms": round(report.run_s * 1e3, 3),
        "commit_ms": round(report.commit_s * 1e3, 3),
    }
    _log.debug("step", extra={"fields": fields})
