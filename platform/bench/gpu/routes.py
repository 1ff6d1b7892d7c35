"""Requests whose adapter is not on the card, by route: by link, rank and length of the prompt."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from time import perf_counter
from types import MappingProxyType
from typing import Literal

import torch

from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.storage import AdapterStore
from loraplex.adapters.weights import AdapterWeights, VerifiedAdapter
from loraplex.engine.assist.host_assist import HostAssist
from loraplex.engine.assist.watch import Watch
from loraplex.engine.copy_link import CopyLink
from loraplex.engine.plan import Chunk, ColdChunk, Logprobs, SampleSpec, StepOutput, StepPlan
from loraplex.engine.runner import ModelRunner
from loraplex.engine.stored_adapters import StoredAdapters
from loraplex.platform.bench.adapters import write_adapters
from loraplex.platform.bench.gpu.attention_ways import BLOCK_SIZE
from loraplex.platform.bench.gpu.llama import LLAMA_1B, LOGITS, TINY, random_model
from loraplex.platform.bench.gpu.records import Check, Comparison, Fact, Record, Time
from loraplex.platform.bench.gpu.stage import Setup

RANKS = (16, 64, 256)
TOKENS = (64, 256, 1024)
LINKS: tuple[float | None, ...] = (1.0, 4.0, 16.0, None)
"""GB/s (10⁹ bytes) to which copies are throttled; None: as fast as the card's own link."""
Route = Literal["wait", "layer-wise", "assist"]
ROUTES: tuple[Route, ...] = ("wait", "layer-wise", "assist")
_RUNS = 2
_SLOW_GBPS = 0.001
_MOST_ASSISTANTS, _SHARE_OF_CORES = 8, 4
_START_S, _LAYER_WAIT_MS = 20.0, 1000.0
_TOP = 20
_SPEC = SampleSpec(temperature=0.0, top_p=1.0, top_k=0, seed=0, position=0, num_top_logprobs=_TOP)
_KEY = AdapterKey("check", "cold")


@dataclass(frozen=True, slots=True)
class _World:
    """A runner, and adapters of the ranks in the host's memory, pinned on a machine with a card."""

    runner: ModelRunner
    stored: StoredAdapters
    on_host: Mapping[int, VerifiedAdapter]
    copies: ThreadPoolExecutor

    def resident(self, rank: int) -> AdapterWeights:
        """A copy of its own, all of it on the device."""
        return self.stored.place(self.on_host[rank], LoadProgress())

    def run(self, chunk: Chunk, weights: AdapterWeights) -> StepOutput:
        """A prompt on an adapter that is there."""
        plan = StepPlan(0, (chunk,))
        return self._step(plan, {_KEY: weights}, {})

    def run_cold(
        self, chunk: Chunk, rank: int, route: Route, link_gbps: float | None
    ) -> StepOutput:
        """The same on an adapter whose copy begins now."""
        link = CopyLink(None if link_gbps is None else link_gbps * 1e9)
        passage = link.passage(is_prefetch=False)
        link.enter(passage)
        is_usable = Event()
        progress = LoadProgress(partial(link.take, passage), is_usable.set)
        copy = self.copies.submit(self.stored.place, self.on_host[rank], progress)
        try:
            if route == "wait":
                return self.run(chunk, copy.result())
            if not is_usable.wait(_START_S):
                raise TimeoutError("the adapter has not got its memory")
            return self._pass(chunk, progress, may_assist=route == "assist")
        finally:
            link.close()
            copy.exception()
            progress.end()

    def _pass(self, chunk: Chunk, progress: LoadProgress, *, may_assist: bool) -> StepOutput:
        cold = ColdChunk(chunk, progress.of_layers, may_assist, _LAYER_WAIT_MS)
        plan = StepPlan(0, cold=(cold,))
        while True:
            output = self._step(plan, {}, {_KEY: progress})
            if output.cold[chunk.request_id].is_done:
                return output

    def _step(
        self,
        plan: StepPlan,
        adapters: Mapping[AdapterKey, AdapterWeights],
        arriving: Mapping[AdapterKey, LoadProgress],
    ) -> StepOutput:
        return self.runner.collect(self.runner.launch(self.runner.build(plan, adapters, arriving)))


def routes(setup: Setup) -> Iterator[Record]:
    """Compare what routes compute, and then time first tokens of a 1B Llama by each."""
    tiny = replace(setup, small=True)
    with _world(tiny, "float32", (4, 16), 40) as world:
        yield from _exact(world, (4, 16), 40)
    ranks, tokens, links = (
        (RANKS[:1], TOKENS[:1], LINKS[-2:]) if setup.small else (RANKS, TOKENS, LINKS)
    )
    dtype = "float32" if setup.small else "bfloat16"
    with _world(setup, dtype, ranks, max(tokens)) as world:
        yield from _copies(world, ranks)
        for rank, count in product(ranks, tokens):
            yield from _times(world, rank, count, links)


def _exact(world: _World, ranks: Sequence[int], count: int) -> Iterator[Record]:
    """On a link so slow that layers come one after the other."""
    comparison = Comparison(
        "first tokens of all routes are those on an adapter that is there", LOGITS
    )
    num_host_layers = 0
    for rank, route in product(ranks, ROUTES):
        expected = world.run(_chunk(count), world.resident(rank)).logprobs["prompt"]
        output = world.run_cold(_chunk(count), rank, route, _SLOW_GBPS)
        comparison.add(f"r{rank}, {route}", *_aligned(output.logprobs["prompt"], expected))
        if route == "assist":
            num_host_layers += output.cold["prompt"].num_host_layers
    yield comparison.check()
    yield Check("the host computes layers that have not come", num_host_layers > 0, len(ranks))


def _aligned(found: Logprobs, expected: Logprobs) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the tokens that were most likely; of one that is missing, no number."""
    of_found = dict(found.top)
    values = [of_found.get(token_id, torch.nan) for token_id, _ in expected.top]
    return torch.tensor(values), torch.tensor([value for _, value in expected.top]).double()


def _copies(world: _World, ranks: Sequence[int]) -> Iterator[Record]:
    for rank in ranks:
        num_bytes = world.on_host[rank].pairs.data.nbytes
        world.resident(rank)
        started = perf_counter()
        world.resident(rank)
        seconds = perf_counter() - started
        yield Fact(f"copied layer by layer, r{rank}, GB/s", num_bytes / seconds / 1e9)


def _times(world: _World, rank: int, count: int, links: Sequence[float | None]) -> Iterator[Record]:
    case, chunk, there = f"r{rank}, {count} tokens", _chunk(count), world.resident(rank)
    yield Time(
        f"first token (host's clock), {case}, resident", _least_ms(partial(world.run, chunk, there))
    )
    for link in links:
        name = "the card's link" if link is None else f"{link:g} GB/s"
        times = {
            route: _least_ms(partial(world.run_cold, chunk, rank, route, link)) for route in ROUTES
        }
        for route, ms in times.items():
            yield Time(f"first token (host's clock), {case}, {name}, {route}", ms)
        yield Fact(f"fastest, {case}, {name}", min(times, key=times.__getitem__))


def _least_ms(run: Callable[[], StepOutput]) -> float:
    """Least time of a few: each reads a token, and so waits for the card."""
    times = []
    for _ in range(_RUNS + 1):  # the first compiles kernels for these sizes
        started = perf_counter()
        run()
        times.append((perf_counter() - started) * 1e3)
    return min(times[1:])


def _chunk(count: int) -> Chunk:
    blocks = tuple(range(-(-(count + 1) // BLOCK_SIZE)))
    return Chunk("prompt", _KEY, tuple(7 + 5 * n % 61 for n in range(count)), 0, blocks, _SPEC)


@contextmanager
def _world(setup: Setup, dtype: str, ranks: Sequence[int], longest: int) -> Iterator[_World]:
    cores = sorted(os.sched_getaffinity(0))
    num = min(_MOST_ASSISTANTS, max(1, len(cores) // _SHARE_OF_CORES))
    shape = TINY if setup.small else LLAMA_1B
    with (
        random_model(setup, shape, dtype) as model,
        TemporaryDirectory(prefix="loraplex-gpu-check-") as folder,
        closing(HostAssist(model.shapes.linears, Watch(cores[-num:]))) as assist,
        ThreadPoolExecutor(1) as copies,
    ):
        assist.watch.wait_ready(_START_S)
        runner = ModelRunner(model, -(-(longest + 1) // BLOCK_SIZE), BLOCK_SIZE, assist=assist)
        stored = StoredAdapters(AdapterStore(Path(folder) / "adapters"), runner, shares=True)
        written = write_adapters(model, Path(folder), 0, len(ranks), ranks)
        on_host = {adapter.rank: stored.read(adapter.digest) for adapter in written}
        yield _World(runner, stored, MappingProxyType(on_host), copies)
