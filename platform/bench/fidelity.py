"""`loraplex bench fidelity`: does the simulator tell what the engine then does?

A cost model learns how long steps take while generated requests run through the whole engine of
this process. On a device of which that is the profile other requests are simulated, and then run
twice through the engine: the second time tells how far the engine differs from itself.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch

from loraplex.adapters.residency import State
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.config import Targets
from loraplex.engine.core import StepReport
from loraplex.engine.cost import CostModel, Subject
from loraplex.engine.memory import PoolSizes
from loraplex.engine.model import LoadedModel, export_tokenizer
from loraplex.engine.simulation.devices import Device, LearnedTimes
from loraplex.engine.simulation.experiment import Setup, run_policy
from loraplex.engine.simulation.metrics import measure
from loraplex.engine.simulation.model import ScriptedModel, plan_features
from loraplex.engine.simulation.records import Run
from loraplex.engine.simulation.workload import (
    AdapterMix,
    Generated,
    Requests,
    generate,
    with_adapters,
)
from loraplex.platform.base import load_base
from loraplex.platform.bench.adapters import BenchAdapter, write_adapters
from loraplex.platform.bench.machine import Machine, describe_machine
from loraplex.platform.bench.random_model import LlamaShape, write_random_llama
from loraplex.platform.bench.replay import (
    END_TOKEN,
    Clock,
    LengthRunner,
    ProcessorClock,
    Replay,
    WallClock,
)
from loraplex.platform.bench.subject import pool_sizes
from loraplex.platform.fair import fair_settings
from loraplex.platform.settings import Settings, available_cores
from loraplex.platform.worker import EngineParts, compose_engine

_NUM_ADAPTERS = 6
_MIB = 1 << 20
_LOADING_S = 5.0
RANDOM_MODEL = "random"
_SHAPE = LlamaShape(
    hidden_size=256,
    num_layers=8,
    num_heads=8,
    num_kv_heads=4,
    intermediate_size=768,
    vocab_size=4096,
    max_position_embeddings=2048,
)
"""So small that a minute has some thousand steps."""


@dataclass(frozen=True, slots=True)
class FidelityPlan:
    """What is replayed."""

    seconds: float = 60.0
    """Of the requests that are compared."""
    learn_requests: int = 60
    """As many are run at once and as many again spread over time, to learn from."""
    load: float = 0.9
    """Of what the machine can do, by what was learned."""
    num_tenants: int = 4
    mean_prompt_tokens: float = 60.0
    mean_output_tokens: float = 30.0
    by_processor_time: bool = False
    """Count the time in which this process computes, not what others take of the machine."""
    pool_requests: int = 8
    """KV blocks for so many of the longest requests."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Compared:
    """One number, as it was and as it was foretold."""

    name: str
    engine: float
    again: float
    """By the engine, another time."""
    simulated: float

    @property
    def error(self) -> float:
        """Relative; 0 where both are 0."""
        return (self.simulated - self.engine) / self.engine if self.engine else 0.0


@dataclass(frozen=True, slots=True)
class FidelityResult:
    """What was measured."""

    machine: Machine
    num_requests: int
    num_steps: int
    learned_steps: int
    step_p50_error: float
    """Relative error of predicted step times in the second part; the next is its P95."""
    step_p95_error: float
    compared: tuple[Compared, ...]


class Watch:
    """Learns step times and the speed of copies from an engine that runs."""

    def __init__(
        self,
        parts: EngineParts,
        adapters: Sequence[BenchAdapter],
        costs: CostModel,
        clock: Clock,
    ) -> None:
        self.costs = costs
        self._clock = clock
        self.errors: list[float] = []
        self.copy_bytes_per_s: list[float] = []
        self._residency = parts.residency
        self._bytes = {adapter.digest: adapter.num_bytes for adapter in adapters}
        self._mib = {adapter.digest: adapter.num_bytes / _MIB for adapter in adapters}
        self._loading: dict[AdapterKey, float] = {}

    def see(self, report: StepReport, seconds: float) -> None:
        """A step that computed something."""
        now = self._clock.now()
        for key, since in list(self._loading.items()):
            if self._residency.state(key) is State.RESIDENT:
                self.copy_bytes_per_s.append(self._bytes[key.digest] / (now - since))
                del self._loading[key]
        self._loading |= dict.fromkeys(report.plan.loads, now)
        in_flight = sum(self._bytes[key.digest] for key in self._loading)
        step, ms = plan_features(report.plan, self._mib_of, in_flight), seconds * 1e3
        if self.costs.num_steps:
            self.errors.append((self.costs.predict_ms(step) - ms) / ms)
        self.costs.observe(step, ms)

    def _mib_of(self, key: AdapterKey) -> float:
        return self._mib[key.digest]


class Bench:
    """One model, its adapters and a runner, from which engines are made."""

    def __init__(self, settings: Settings, plan: FidelityPlan, folder: Path) -> None:
        self.settings = settings.model_copy(update={"data_dir": folder})
        if settings.model == RANDOM_MODEL:
            write_random_llama(folder / RANDOM_MODEL, _SHAPE, plan.seed)
            settings = settings.model_copy(update={"model": str(folder / RANDOM_MODEL)})
        loaded = load_base(settings)
        self.model: LoadedModel = replace(loaded, eos_token_ids=frozenset({END_TOKEN}))
        self.adapters = tuple(islice(write_adapters(self.model, folder, plan.seed), _NUM_ADAPTERS))
        longest = int(8 * (plan.mean_prompt_tokens + plan.mean_output_tokens))
        self.longest = min(longest, self.model.max_model_len)
        block_size = self.settings.block_size
        self.sizes: PoolSizes = pool_sizes(
            self.adapters, plan.pool_requests, self.longest, block_size
        )
        self._runner = LengthRunner(self.model, self.sizes.num_blocks, block_size)
        self._by_processor_time = plan.by_processor_time
        self._tokenizer_json = export_tokenizer(self.model.path).tokenizer_json

    def replay(self, requests: Requests, costs: CostModel) -> tuple[Run, Watch]:
        """Run requests through an engine in whose memory no adapter is."""
        clock = ProcessorClock() if self._by_processor_time else WallClock()
        parts = compose_engine(
            self.settings,
            self.model,
            self._runner,
            self.sizes,
            self._tokenizer_json,
            clock=clock.now,
        )
        watch = Watch(parts, self.adapters, costs, clock)
        self._runner.script = ScriptedModel(
            {str(i): r.output_tokens for i, r in enumerate(requests)}
        )
        try:
            run = Replay(parts, requests, self.model.vocab_size, clock, watch.see).run()
        finally:
            parts.transfers.close()
        return run, watch

    def requests(self, plan: FidelityPlan, rate: float, seconds: float, seed: int) -> Requests:
        """Tenants that send Poisson streams; all use the same adapters."""
        spec = Generated(
            plan.num_tenants,
            rate,
            seconds,
            mean_prompt_tokens=plan.mean_prompt_tokens,
            mean_output_tokens=plan.mean_output_tokens,
        )
        mixed = with_adapters(generate(spec, seed), AdapterMix(len(self.adapters)), seed)
        half = self.longest // 2
        fitting = []
        for request in mixed:
            adapter = self.adapters[int(str(request.adapter).rpartition("/")[2])]
            fitting.append(
                replace(
                    request,
                    prompt_tokens=min(request.prompt_tokens, half),
                    output_tokens=min(request.output_tokens, half),
                    adapter=adapter.digest,
                    rank=adapter.rank,
                )
            )
        return tuple(fitting)

    def warm(self, requests: Requests) -> Requests:
        """The same after one request for each adapter, which load them."""
        first = requests[0]
        loads = [
            replace(
                first,
                arrival_s=0.0,
                prompt_tokens=8,
                output_tokens=1,
                adapter=a.digest,
                rank=a.rank,
            )
            for a in self.adapters
        ]
        later = [replace(r, arrival_s=r.arrival_s + _LOADING_S) for r in requests]
        return (*loads, *later)

    def learn(self, plan: FidelityPlan) -> tuple[float, Watch]:
        """Requests a second that this machine can do, and what its steps taught."""
        subject = Subject(self.model.config.name, self.model.config.device)
        count, seed = plan.learn_requests, plan.seed + 1
        # The first run lets torch allocate what it keeps.
        self.replay(self.requests(plan, count, 1.0, seed), CostModel(subject))
        costs = CostModel(subject)
        at_once, _ = self.replay(self.requests(plan, count, 1.0, seed + 1), costs)
        rate = len(at_once.records) / at_once.duration_s
        spread = self.requests(plan, plan.load * rate, count / rate, seed + 2)
        return rate, self.replay(spread, costs)[1]

    def device(self, watch: Watch) -> Device:
        """What was learned, as a device for the simulator."""
        largest = max(self.adapters, key=lambda adapter: adapter.rank)
        per_rank = largest.num_bytes // largest.rank
        return Device(
            name=self.model.config.name,
            times=LearnedTimes(watch.costs, per_rank),
            kv_tokens=self.sizes.num_blocks * self.settings.block_size,
            max_step_tokens=self.settings.max_step_tokens,
            max_running=self.settings.max_running,
            bytes_per_rank=per_rank,
            copy_bytes_per_s=median(watch.copy_bytes_per_s or [1e9]),
            block_size=self.settings.block_size,
        )

    def setup(self, device: Device, requests: Requests, noise: float) -> Setup:
        """The same policy as the engine's."""
        own = self.settings
        return Setup(
            device,
            requests,
            noise=noise,
            fair=fair_settings(own),
            targets=Targets(own.default_ttft_ms, own.default_tpot_ms),
        )


def measure_fidelity(
    settings: Settings, plan: FidelityPlan, show: Callable[[str], None]
) -> FidelityResult:
    """Learn, replay, simulate, compare.

    Raises:
        BenchFailed: a request failed.
        EngineError: the model cannot be served.
    """
    load_average = os.getloadavg()[0]
    torch.set_num_threads(settings.threads or max(1, available_cores() - 1))
    with TemporaryDirectory(prefix="loraplex-bench-") as folder:
        show("loading the model")
        bench = Bench(settings, plan, Path(folder))
        show("learning how long steps take")
        rate, watch = bench.learn(plan)
        learned_steps, profile = watch.costs.num_steps, watch.costs.to_json()
        noise = float(np.std(np.clip(watch.errors, -1.0, 1.0)))
        requests = bench.warm(bench.requests(plan, plan.load * rate, plan.seconds, plan.seed))
        setup = bench.setup(bench.device(watch), requests, noise)
        simulated = run_policy(setup, settings.scheduling)
        runs, errors = [], []
        for which in ("first", "second"):
            show(f"running {len(requests)} requests for the {which} time")
            run, second = bench.replay(requests, CostModel.from_json(profile))
            runs.append(run)
            errors += second.errors
        return FidelityResult(
            machine=describe_machine(bench.model, load_average),
            num_requests=len(requests),
            num_steps=runs[0].num_steps,
            learned_steps=learned_steps,
            step_p50_error=float(np.percentile(np.abs(errors), 50)),
            step_p95_error=float(np.percentile(np.abs(errors), 95)),
            compared=_compare(len(bench.adapters), *runs, simulated),
        )


def _compare(num_warm: int, *runs: Run) -> tuple[Compared, ...]:
    for run in runs:
        del run.records[:num_warm]
    measured = [measure(run) for run in runs]
    names = ("tokens_per_s", "p50_ttft_s", "p99_ttft_s", "p99_tpot_s", "max_diff", "avg_diff")
    compared = [Compared(name, *(getattr(each, name) for each in measured)) for name in names]
    tpots = [[r.tpot_s for r in run.records if r.tpot_s is not None] for run in runs]
    return (*compared, Compared("p50_tpot_s", *(float(np.median(each)) for each in tpots)))
