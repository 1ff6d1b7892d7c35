"""Teaches a cost model before there is traffic: steps that are made up, on the real runner.

What they write into the KV cache lies in blocks that nobody holds yet; whoever is given them writes
before it reads.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.config import SchedulerConfig
from loraplex.engine.core import Runner
from loraplex.engine.cost import CostModel
from loraplex.engine.cost_features import Row, StepFeatures
from loraplex.engine.plan import Chunk, SampleSpec, StepPlan

_GREEDY = SampleSpec(temperature=0.0, top_p=1.0, top_k=0, seed=0, position=1)
_SHORT_CONTEXT, _LONG_CONTEXT = 32, 512
_MAX_LONG = 16
"""Decodes of one step that have a long context: more would take the time of many other steps."""
_MAX_ROUNDS = 8
_SIZES_APART = 4
_GROWTH = 1.25 * _SIZES_APART
"""A step is taken to last at most so many times as long as the longest before it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A step to try: some decodes, and perhaps a chunk of a prompt."""

    num_decodes: int
    context: int = _SHORT_CONTEXT
    """Tokens before each decode."""
    chunk: int = 0
    start: int = 0
    """Tokens before the chunk."""
    num_adapters: int = 0
    """Distinct ones, of which the rows take turns."""

    @property
    def num_tokens(self) -> int:
        """Rows of the forward pass."""
        return self.num_decodes + self.chunk


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What came of it."""

    num_steps: int
    seconds: float


class Calibration:
    """Runs shapes from the smallest to the largest, again and again, until its time is over."""

    def __init__(
        self,
        runner: Runner[Any],
        config: SchedulerConfig,
        adapters: Mapping[AdapterKey, AdapterWeights],
        clock: Callable[[], float],
    ) -> None:
        """`adapters` are such as requests will have, made up too; `clock` is in seconds."""
        self._runner = runner
        self._config = config
        self._adapters = adapters
        self._clock = clock

    def run(
        self, costs: CostModel, budget_s: float, is_stopped: Callable[[], bool] = lambda: False
    ) -> Calibrated:
        """Let `costs` learn for at most about `budget_s` seconds, or until told to stop."""
        started = self._clock()
        ends, num_steps = started + budget_s, 0
        known_s: dict[Shape, float] = {}
        for number in range(_MAX_ROUNDS):
            for shape in shapes(self._config, len(self._adapters), 1 + number % 2):
                begun = self._clock()
                if is_stopped() or begun >= ends:
                    return Calibrated(num_steps, begun - started)
                if begun + _expected_s(shape, known_s) > ends:
                    continue  # smaller ones may still fit
                step, plan = self._plan(shape)
                known_s[shape] = self._time(plan)
                costs.observe(step, known_s[shape] * 1e3)
                num_steps += 1
        return Calibrated(num_steps, self._clock() - started)

    def _time(self, plan: StepPlan) -> float:
        started = self._clock()
        self._runner.collect(self._runner.launch(self._runner.build(plan, self._adapters, {})))
        return self._clock() - started

    def _plan(self, shape: Shape) -> tuple[StepFeatures, StepPlan]:
        keys = list(self._adapters)[: shape.num_adapters]
        sizes = [(1, shape.context)] * shape.num_decodes
        if shape.chunk:
            sizes.append((shape.chunk, shape.start))
        chunks: list[Chunk] = []
        num_blocks = 0
        for num_tokens, start in sizes:
            adapter = keys[len(chunks) % len(keys)] if keys else None
            chunks.append(self._chunk(len(chunks), num_tokens, start, num_blocks, adapter))
            num_blocks += len(chunks[-1].block_table)
        rank = sum(self._adapters[key].num_bytes for key in keys) / (1 << 20) / len(chunks)
        rows = [Row(size, start, rank, is_decode=size == 1) for size, start in sizes]
        return StepFeatures.of(rows, len(keys)), StepPlan(0, tuple(chunks))

    def _chunk(
        self, index: int, num_tokens: int, start: int, first_block: int, adapter: AdapterKey | None
    ) -> Chunk:
        config = self._config
        num_blocks = -(-(start + num_tokens) // config.block_size)
        return Chunk(
            f"calibration-{index}",
            adapter,
            tuple((index + 7919 * i) % config.vocab_size for i in range(num_tokens)),
            start,
            # Each has blocks of its own, as long as the pool reaches, as requests have.
            tuple((first_block + i) % config.num_blocks for i in range(num_blocks)),
            _GREEDY,
        )


def shapes(config: SchedulerConfig, num_adapters: int, smallest: int = 1) -> Iterator[Shape]:
    """Steps that a worker can have: what matters most first, and the shortest of that. Numbers of
    tokens are `smallest` and its multiples by powers of 4."""
    context = min(_LONG_CONTEXT, config.max_model_len // 2)
    short = min(_SHORT_CONTEXT, context)
    sizes = [min(smallest, config.max_step_tokens)]
    while sizes[-1] * _SIZES_APART <= config.max_step_tokens:
        sizes.append(sizes[-1] * _SIZES_APART)
    decodes = [size for size in sizes if size <= config.max_running]
    chunks = [size for size in sizes if 1 < size <= config.max_model_len - context]
    for size in sizes:
        if size in decodes:
            yield Shape(size, short)
        if size in chunks:
            yield Shape(0, chunk=size)
    if num_adapters:
        yield from (Shape(size, short, num_adapters=min(size, num_adapters)) for size in decodes)
    yield from (Shape(size, context) for size in decodes if size <= _MAX_LONG)
    for size in chunks:
        if size < config.max_step_tokens:
            yield Shape(1, short, chunk=size, start=context)


def _expected_s(shape: Shape, known_s: Mapping[Shape, float]) -> float:
    smaller = [s for other, s in known_s.items() if other.num_tokens <= shape.num_tokens]
    return known_s.get(shape) or _GROWTH * max(smaller, default=0.0)
