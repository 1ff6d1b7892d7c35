"""`loraplex bench planner`: what deciding a step costs, without a model."""

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import thread_time

import numpy as np

from loraplex.adapters.residency import Residency
from loraplex.engine.config import SchedulerConfig, Targets
from loraplex.engine.cost import CostModel, Subject
from loraplex.engine.fair_admission import FairAdmission
from loraplex.engine.lengths import OutputLengths
from loraplex.engine.plan import Logprobs, StepOutput, StepPlan
from loraplex.engine.protocol import Sampling, Submit
from loraplex.engine.request import Piece
from loraplex.engine.scheduler import Scheduler
from loraplex.platform.fair import fair_settings
from loraplex.platform.settings import Settings

NUM_TENANTS = 100
BLOCK_SIZE = 16
PROMPT_TOKENS = (16, 512)
OUTPUT_TOKENS = (32, 512)
"""Drawn uniformly from these ranges."""
_VOCAB_SIZE = 50_000
_STEP_MS = 20.0
_ADAPTER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Load:
    """What the scheduler has to handle at any time."""

    num_running: int
    num_waiting: int
    num_adapters: int


@dataclass(frozen=True, slots=True)
class PlannerTimes:
    """Processor time of plan and commit together, by step."""

    p50_us: float
    p99_us: float
    reuse_p50_us: float
    """Of steps in which nobody arrives, begins or ends."""
    num_steps: int


class _NoText:
    """Turns tokens into nothing: what text costs is not the planner's."""

    stopped = False

    def push(self, token_id: int, logprobs: Logprobs | None) -> Piece:  # noqa: ARG002  of the protocol
        return _NOTHING

    def end(self) -> Piece:
        return _NOTHING


_NOTHING = Piece()


class _World:
    """A scheduler under a steady load. Loads arrive after one step."""

    def __init__(self, load: Load, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311  reproducible, not secret
        self._load = load
        num_blocks = load.num_running * (PROMPT_TOKENS[1] + OUTPUT_TOKENS[1]) // BLOCK_SIZE
        config = SchedulerConfig(
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_step_tokens=2048,
            max_running=load.num_running,
            max_waiting_requests=2 * load.num_waiting,
            max_waiting_tokens=2 * load.num_waiting * PROMPT_TOKENS[1],
            max_model_len=PROMPT_TOKENS[1] + OUTPUT_TOKENS[1],
            vocab_size=_VOCAB_SIZE,
            targets={"default": Targets(5000.0, 250.0)},
            kv_forecast=True,
            prefetch="queue",
        )
        self._residency = Residency(load.num_adapters * _ADAPTER_BYTES)
        fair = replace(fair_settings(Settings()), max_open=load.num_running)
        costs = CostModel(Subject("bench", "none"))
        no_text: Callable[[Submit], _NoText] = lambda _: _NoText()  # noqa: E731  its type is checked
        self.scheduler = Scheduler(
            config,
            self._residency,
            FairAdmission(fair),
            no_text,
            frozenset(),
            costs,
            OutputLengths(),
        )
        self._num_added = 0
        self._now = 0.0
        self._plan: StepPlan | None = None

    def fill(self) -> None:
        """Add requests until as many wait as should."""
        while self.scheduler.num_waiting < self._load.num_waiting:
            self._num_added += 1
            adapter = self._random.randrange(self._load.num_adapters)
            num_tokens = self._random.randint(*PROMPT_TOKENS)
            submit = Submit(
                request_id=f"r{self._num_added}",
                tenant=f"t{adapter % NUM_TENANTS}",
                adapter=f"a{adapter}",
                prompt=tuple(range(self._num_added, self._num_added + num_tokens)),
                sampling=Sampling(max_tokens=self._random.randint(*OUTPUT_TOKENS), seed=0),
            )
            self.scheduler.add(submit, self._now, _ADAPTER_BYTES)

    def step(self) -> tuple[float, bool]:
        """One step; its time in µs, and whether anybody began or ended in it."""
        num_running = self.scheduler.num_running
        started = thread_time()
        plan = self.scheduler.plan(self._now)
        planned = thread_time()
        has_begun = self.scheduler.num_running != num_running or bool(plan.loads)
        output = StepOutput(np.full(len(plan.sampled_keys), 7))
        ran = thread_time()
        events = self.scheduler.commit(plan, output, _STEP_MS)
        done = thread_time()
        for key in plan.loads:
            self._residency.finish_load(key)
        self._now += _STEP_MS / 1e3
        changed = has_begun or bool(plan.prefills or events.finished)
        return ((planned - started) + (done - ran)) * 1e6, changed


def measure_planner(
    load: Load, num_steps: int, seed: int, show: Callable[[str], None]
) -> PlannerTimes:
    """Time steps once as many requests run as may."""
    world = _World(load, seed)
    while world.scheduler.num_running < load.num_running:
        world.fill()
        world.step()
    times, unchanged = [], []
    tell = partial(_tell, show, num_steps)
    for index in range(num_steps):
        tell(index)
        world.fill()
        us, changed = world.step()
        times.append(us)
        if not changed:
            unchanged.append(us)
    return PlannerTimes(
        p50_us=round(statistics.median(times), 1),
        p99_us=round(sorted(times)[int(0.99 * len(times))], 1),
        reuse_p50_us=round(statistics.median(unchanged or times), 1),
        num_steps=num_steps,
    )


def _tell(show: Callable[[str], None], num_steps: int, index: int) -> None:
    if index % 100 == 0:
        show(f"step {index} of {num_steps}")
