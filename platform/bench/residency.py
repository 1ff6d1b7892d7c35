"""`loraplex bench residency`: many registered adapters, few in memory; does memory stay flat?"""

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from loraplex.engine.memory import MIB, PoolSizes
from loraplex.engine.protocol import Sampling, Submit
from loraplex.engine.transfers_port import Arrival, LoadRoute
from loraplex.platform.base import load_base
from loraplex.platform.bench.adapters import BenchAdapter, write_adapters
from loraplex.platform.bench.decode import TENANT
from loraplex.platform.bench.errors import BenchFailed
from loraplex.platform.bench.machine import Machine, describe_machine
from loraplex.platform.bench.random_model import LlamaShape, write_random_llama
from loraplex.platform.bench.subject import Subject
from loraplex.platform.settings import Settings
from loraplex.platform.worker import EngineParts

_SHAPE = LlamaShape(
    hidden_size=256,
    num_layers=8,
    num_heads=4,
    num_kv_heads=2,
    intermediate_size=512,
    vocab_size=1024,
    max_position_embeddings=256,
)
_RANK = 8
_FEW = 20
"""Adapters of the store whose start is compared with that of the whole one."""
_STARTS = 7
_ZIPF = 0.9
_BLOCKS = 32
_PROMPT = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class ResidencyPlan:
    """What is done."""

    registered: int = 2000
    on_host: int = 200
    on_device: int = 32
    cycles: int = 1000
    """Loads, once both memories are full; each pushes another adapter out."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class RouteTimes:
    """Loads of one route, in ms from their start to their end."""

    num_loads: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class ResidencyResult:
    """What was measured."""

    machine: Machine
    plan: ResidencyPlan
    adapter_mib: float
    num_requests: int
    most_on_device: int
    most_on_host: int
    store: RouteTimes
    host: RouteTimes
    rss_full_mib: float
    """Of this process once both memories are full; then after all cycles, and at most between."""
    rss_end_mib: float
    rss_most_mib: float
    start_few_ms: float
    """From the composition of an engine to the first token of a request on an adapter, over a store
    of 20: median of 7, in turn with the next."""
    start_all_ms: float
    """The same over the store of all."""


@dataclass(slots=True)
class _Seen:
    """What steps have told."""

    arrivals: list[Arrival] = field(default_factory=list)
    num_requests: int = 0
    most_on_device: int = 0
    most_on_host: int = 0
    rss_bytes: list[int] = field(default_factory=list)


def measure_residency(
    settings: Settings, plan: ResidencyPlan, load_average: float, show: Callable[[str], None]
) -> ResidencyResult:
    """Write a small model and its adapters into a temporary folder, and serve requests on them.

    Raises BenchFailed where a request fails.
    """
    torch.set_num_threads(settings.threads or 1)
    with tempfile.TemporaryDirectory(prefix="loraplex-bench-") as name:
        folder = Path(name)
        write_random_llama(folder / "model", _SHAPE, plan.seed)
        settings = settings.model_copy(
            update={"model": str(folder / "model"), "data_dir": folder, "prefetch": "queue"}
        )
        model = load_base(settings)
        few = settings.model_copy(update={"data_dir": folder / "few"})
        written = write_adapters(model, few.data_dir, plan.seed, _FEW, (_RANK,))
        some = tuple(written)
        adapters = _write_all(
            write_adapters(model, folder, plan.seed, plan.registered, (_RANK,)), plan, show
        )
        each_bytes = max(adapter.num_bytes for adapter in adapters)
        sizes = PoolSizes(
            _BLOCKS,
            0,
            plan.on_device * each_bytes,
            _BLOCKS * settings.block_size // 2,
            host_adapter_bytes=plan.on_host * each_bytes,
        )
        subject = Subject.of(model, sizes, settings)
        over_few = Subject(subject.model, subject.runner, sizes, few, subject.tokenizer_json)
        few_ms, all_ms = _start_times((over_few, subject), (some, adapters))
        seen, full = _cycle(subject, adapters, plan, show)
        return _result(
            describe_machine(model, load_average), plan, each_bytes, seen, full, (few_ms, all_ms)
        )


def _write_all(
    written: Iterator[BenchAdapter], plan: ResidencyPlan, show: Callable[[str], None]
) -> tuple[BenchAdapter, ...]:
    adapters = []
    for number, adapter in enumerate(written):
        adapters.append(adapter)
        if number % 100 == 0:
            show(f"adapter {number} of {plan.registered} written")
    return tuple(adapters)


def _start_times(
    subjects: Sequence[Subject], adapters: Sequence[Sequence[BenchAdapter]]
) -> tuple[float, ...]:
    times: tuple[list[float], ...] = tuple([] for _ in subjects)
    for number in range(_STARTS + 1):
        for subject, own, into in zip(subjects, adapters, times, strict=True):
            started = perf_counter()
            with _engine(subject) as parts:
                _ask(parts, own[number].digest, f"start-{number}", _Seen())
            if number:  # the first of all warms the machine up
                into.append((perf_counter() - started) * 1e3)
    return tuple(statistics.median(each) for each in times)


@contextmanager
def _engine(subject: Subject) -> Iterator[EngineParts]:
    parts = subject.new_engine()
    try:
        yield parts
    finally:
        parts.transfers.close()


def _cycle(
    subject: Subject,
    adapters: Sequence[BenchAdapter],
    plan: ResidencyPlan,
    show: Callable[[str], None],
) -> tuple[_Seen, int]:
    """Serve one request after the other on adapters drawn by Zipf's law; return also how often the
    process's memory had been measured when both tiers were full."""
    popularity = np.arange(1, len(adapters) + 1, dtype=float) ** -_ZIPF
    popularity /= popularity.sum()
    drawn = np.random.default_rng(plan.seed)
    seen, full, loads_before = _Seen(), 0, 0
    with _engine(subject) as parts:
        host = parts.residency.host
        for number in count():
            digest = adapters[int(drawn.choice(len(adapters), p=popularity))].digest
            _ask(parts, digest, f"request-{number}", seen)
            seen.most_on_device = max(seen.most_on_device, parts.residency.num_adapters)
            seen.most_on_host = max(seen.most_on_host, len(host.keys))
            seen.rss_bytes.append(_rss_bytes())
            if not full and len(host.keys) >= min(plan.on_host, len(adapters)):
                full, loads_before = number, len(seen.arrivals)
            if full and len(seen.arrivals) >= loads_before + plan.cycles:
                break
            if number % 100 == 0:
                show(f"{len(seen.arrivals) - loads_before} of {plan.cycles} loads")
        parts.residency.check()
    return seen, full


def _ask(parts: EngineParts, digest: str, request_id: str, seen: _Seen) -> None:
    """One request for one token."""
    sampling = Sampling(max_tokens=1, temperature=0.0, seed=0)
    parts.mailbox.put(
        Submit(
            request_id=request_id, tenant=TENANT, adapter=digest, prompt=_PROMPT, sampling=sampling
        )
    )
    seen.num_requests += 1
    while True:
        report = parts.engine.step()
        seen.arrivals += report.arrivals
        if report.events.failed or report.events.rejected:
            raise BenchFailed(f"a request failed: {report.events}")
        if report.events.finished:
            return
        if not report.plan.num_requests:
            parts.mailbox.wait()


def _rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _result(
    machine: Machine,
    plan: ResidencyPlan,
    each_bytes: int,
    seen: _Seen,
    full: int,
    start_ms: tuple[float, float],
) -> ResidencyResult:
    def mib(num_bytes: float) -> float:
        return round(num_bytes / MIB, 1)

    after = seen.rss_bytes[full:]
    return ResidencyResult(
        machine=machine,
        plan=plan,
        adapter_mib=round(each_bytes / MIB, 2),
        num_requests=seen.num_requests,
        most_on_device=seen.most_on_device,
        most_on_host=seen.most_on_host,
        store=_times(seen.arrivals, "store"),
        host=_times(seen.arrivals, "host"),
        rss_full_mib=mib(after[0]),
        rss_end_mib=mib(after[-1]),
        rss_most_mib=mib(max(after)),
        start_few_ms=round(start_ms[0], 1),
        start_all_ms=round(start_ms[1], 1),
    )


def _times(arrivals: Sequence[Arrival], route: LoadRoute) -> RouteTimes:
    ms = [arrival.seconds * 1e3 for arrival in arrivals if arrival.route == route]
    if not ms:
        return RouteTimes(0, 0.0, 0.0)
    p50, p99 = (round(float(value), 2) for value in np.percentile(ms, [50, 99]))
    return RouteTimes(len(ms), p50, p99)
