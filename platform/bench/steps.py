"""`loraplex bench steps`: how long one step of the engine takes, by what shares it."""

import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

import torch

from loraplex.adapters.effects import LoraPair
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.model import LoadedModel
from loraplex.engine.plan import Chunk, SampleSpec, StepPlan
from loraplex.engine.runner import ModelRunner
from loraplex.platform.base import load_base
from loraplex.platform.settings import Settings

CONTEXT_TOKENS = 64
"""Tokens before each decoded one."""
RANKS = (8, 16, 32, 64)
"""Ranks of the adapters, in turn; each is on all linear layers but the head."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """One row of the result."""

    num_requests: int
    num_adapters: int
    median_ms: float
    best_ms: float

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second, if every step took the median."""
        return self.num_requests / self.median_ms * 1e3


def measure_steps(
    settings: Settings,
    batch_sizes: tuple[int, ...],
    repeats: int,
    on_progress: Callable[[str], None],
) -> Iterator[StepTime]:
    """Time decode steps of growing batches: on the base model, on one adapter, on one each.

    The three are interleaved, so that a noisy moment of the machine meets all of them.
    """
    torch.set_num_threads(settings.threads or 1)
    model = load_base(settings)
    blocks_each = -(-(CONTEXT_TOKENS + 1) // settings.block_size)
    runner = ModelRunner(model, blocks_each * max(batch_sizes), settings.block_size)
    adapters = {
        key: runner.locate(weights)
        for key, weights in _random_adapters(model, max(batch_sizes)).items()
    }
    for batch_size in batch_sizes:
        keys = list(adapters)[:batch_size]
        variants: dict[int, list[AdapterKey | None]] = {
            0: [None] * batch_size,
            1: [keys[0]] * batch_size,
            batch_size: [*keys],
        }
        plans = {count: _plan(rows, blocks_each) for count, rows in variants.items()}
        times_ms: dict[int, list[float]] = {count: [] for count in plans}
        for _ in range(repeats):
            for count, plan in plans.items():
                started = perf_counter()
                runner.run(runner.build(plan, adapters))
                times_ms[count].append((perf_counter() - started) * 1e3)
            on_progress(f"{batch_size} requests: {len(times_ms[0])} of {repeats}")
        for count, taken_ms in times_ms.items():
            yield StepTime(batch_size, count, statistics.median(taken_ms), min(taken_ms))


def _random_adapters(model: LoadedModel, count: int) -> dict[AdapterKey, AdapterWeights]:
    generator = torch.Generator().manual_seed(0)
    paths = sorted(model.shapes.linears.keys() - {model.head_path})
    adapters = {}
    for index, rank in zip(range(count), itertools.cycle(RANKS), strict=False):
        pairs = {path: _random_pair(model, path, rank, generator) for path in paths}
        num_bytes = sum(pair.a.nbytes + pair.b.nbytes for pair in pairs.values())
        adapters[AdapterKey("bench", f"{index:064x}")] = AdapterWeights(num_bytes, pairs)
    return adapters


def _random_pair(model: LoadedModel, path: str, rank: int, generator: torch.Generator) -> LoraPair:
    out_features, in_features = model.shapes.linears[path]
    a = torch.randn(rank, in_features, generator=generator) * 0.01
    b = torch.randn(out_features, rank, generator=generator) * 0.01
    return LoraPair(a.to(model.device, model.dtype), b.to(model.device, model.dtype), scale=1.0)


def _plan(rows: list[AdapterKey | None], blocks_each: int) -> StepPlan:
    """A step in which every request decodes one token after CONTEXT_TOKENS others."""
    chunks = tuple(
        Chunk(
            request_id=f"request-{index}",
            adapter=adapter,
            token_ids=(1,),
            start=CONTEXT_TOKENS,
            block_table=tuple(range(index * blocks_each, (index + 1) * blocks_each)),
            sample=SampleSpec(temperature=0.0, top_p=1.0, top_k=0, seed=0, position=0),
        )
        for index, adapter in enumerate(rows)
    )
    return StepPlan(step=1, prefills=chunks)
