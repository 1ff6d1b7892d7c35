"""The engine's model runner on the card: a random Llama, from plans to tokens."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loraplex.adapters.effects import LoraPair
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.config import ModelConfig
from loraplex.engine.decode_graphs import CudaRecorder
from loraplex.engine.model import LoadedModel, load_model
from loraplex.engine.plan import SAMPLING, Chunk, Decodes, Penalties, Roster, SampleSpec, StepPlan
from loraplex.engine.runner import ModelRunner
from loraplex.engine.sampler import SampledRows, sample
from loraplex.engine.sampling_rows import SampledSpecs, sampling_rows
from loraplex.kernels.staging import Staging
from loraplex.platform.bench.bare import without_lora
from loraplex.platform.bench.gpu.attention_ways import BLOCK_SIZE
from loraplex.platform.bench.gpu.clock import wall_ms
from loraplex.platform.bench.gpu.records import (
    Check,
    Comparison,
    Fact,
    Ratio,
    Record,
    Time,
    equal_bits,
)
from loraplex.platform.bench.gpu.stage import Setup
from loraplex.platform.bench.gpu.step_times import BATCH, DISTINCT_TARGET
from loraplex.platform.bench.random_model import LlamaShape, write_random_llama

LLAMA_1B = LlamaShape(2048, 16, 32, 8, 8192, 128_256, 4096)
TINY = LlamaShape(48, 2, 4, 2, 80, 97, 128)
IDLE_TARGET = 0.98
_CONTEXT = 128
_RUNS = 30
LOGITS = (1e-4, 1e-4)
"""Relative and absolute: what float32 differs by in another order of sums."""

_OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {},
    {"top_k": 50},
    {"top_p": 0.9},
    {"min_p": 0.02, "temperature": 1.5},
    {"top_k": 40, "top_p": 0.95, "min_p": 0.01, "num_top_logprobs": 5},
    {"logit_bias": ((5, 3.0), (7, -100.0)), "forbidden_ids": (1, 2)},
    {"temperature": 0.0, "penalties": Penalties(1.3, 0.5, 0.2, (3, 4), (5, 5, 6))},
)

Adapters = Mapping[AdapterKey, AdapterWeights]
Row = AdapterKey | None


def llama(setup: Setup) -> Iterator[Record]:
    """Decode with a random 1B Llama: rows on adapters of their own, on one, on none."""
    rows = 2 if setup.small else BATCH
    context = 5 if setup.small else _CONTEXT
    dtype = "float32" if setup.small else "bfloat16"
    with random_model(setup, TINY if setup.small else LLAMA_1B, dtype) as model:
        blocks = rows * -(-(context + 1) // BLOCK_SIZE)
        runner = ModelRunner(model, blocks, BLOCK_SIZE)
        yield Fact("engine's kernels", runner.kernels)
        adapters = random_adapters(runner, [16] * rows)
        keys = list(adapters)
        owners: dict[str, list[Row]] = {
            f"{rows} distinct adapters r16": [*keys],
            "one adapter r16": [keys[0]] * rows,
            "base": [None] * rows,
        }
        plans = {name: decode_plan(of_rows, context) for name, of_rows in owners.items()}
        yield from _graphs(runner, plans, adapters, setup)
        bare = ModelRunner(without_lora(model), blocks, BLOCK_SIZE)
        _use_graphs(bare, rows, setup)
        cases = [(name, runner, plan) for name, plan in plans.items()]
        times = {}
        for name, on, plan in [*cases, ("base, LoRA off", bare, plans["base"])]:
            times[name] = wall_ms(partial(_run, on, plan, adapters), setup.device, _RUNS)
            yield Time(f"1B Llama, step of {rows} rows, {name}", times[name])
            yield Fact(f"1B Llama, {name}, tokens/s", rows / times[name] * 1e3)
        distinct, one, base, off = times.values()
        title = f"1B Llama, {rows} rows r16"
        yield Ratio(f"{title}: all distinct ÷ one adapter", one / distinct, DISTINCT_TARGET)
        yield Ratio(f"{title}: all distinct ÷ base", base / distinct)
        yield Ratio("1B Llama: base with LoRA enabled ÷ disabled", off / base, IDLE_TARGET)


def _graphs(
    runner: ModelRunner, plans: Mapping[str, StepPlan], adapters: Adapters, setup: Setup
) -> Iterator[Record]:
    """Have the runner use graphs from here on, and compare what it then computes."""
    if not setup.on_gpu:
        yield Fact("graphs of the engine", "none here")
        return
    launched, launched_ms = {}, {}
    for name, plan in plans.items():
        launched[name] = runner.logits(runner.build(plan, adapters)).clone()
        launched_ms[name] = wall_ms(partial(_run, runner, plan, adapters), setup.device, _RUNS)
    rows = max(len(plan.decodes) for plan in plans.values())
    if not _use_graphs(runner, rows, setup):
        yield Fact("graphs of the engine", "none here")
        return
    for name, plan in plans.items():
        batch = runner.build(plan, adapters)
        yield Check(f"the engine has a graph for {name}", batch.graph is not None)
        replayed = runner.logits(batch).clone()
        yield equal_bits(
            f"the engine's graph has the bits of launches, {name}", replayed, launched[name]
        )
        graph_ms = wall_ms(partial(_run, runner, plan, adapters), setup.device, _RUNS)
        yield Ratio(f"1B Llama, {name}: launched ÷ by graph", launched_ms[name] / graph_ms, 1.0)


def _use_graphs(runner: ModelRunner, rows: int, setup: Setup) -> bool:
    if not setup.on_gpu:
        return False
    recorded = list(runner.record_graphs(CudaRecorder(), (rows,)))
    if recorded:
        runner.use_graphs(recorded[-1])
    return bool(recorded)


def exact_model(setup: Setup) -> Iterator[Record]:
    """Compare a tiny model's mixed batch with the same engine on the CPU, and drawn tokens too."""
    yield _draws(setup)
    ranks = (8, 33, 3)
    comparison = Comparison("a tiny Llama's logits are the CPU's, float32", LOGITS)
    host = Setup(torch.device("cpu"), setup.small, setup.facts)
    with (
        random_model(setup, TINY, "float32") as model,
        random_model(host, TINY, "float32") as reference,
    ):
        runners = [ModelRunner(each, 32, BLOCK_SIZE) for each in (model, reference)]
        of_each = [random_adapters(runner, ranks) for runner in runners]
        owners: list[Row] = [None, *of_each[0]]
        for name, plan in _steps(owners).items():
            found, expected = (
                runner.logits(runner.build(plan, adapters))
                for runner, adapters in zip(runners, of_each, strict=True)
            )
            comparison.add(name, found.cpu(), expected.double())
    yield comparison.check()


@contextmanager
def random_model(setup: Setup, shape: LlamaShape, dtype: str) -> Iterator[LoadedModel]:
    """A random model; small ones are drawn on the CPU, to be the same on all devices."""
    with TemporaryDirectory(prefix="loraplex-gpu-check-") as folder:
        path = Path(folder) / "random"
        write_random_llama(path, shape, 0, "cpu" if shape is TINY else setup.device)
        yield load_model(ModelConfig(path, "random", setup.device.type, dtype))


def random_adapters(runner: ModelRunner, ranks: Sequence[int]) -> Adapters:
    """Adapters on all linear layers but the head; the same for equal models."""
    model, generator = runner.model, torch.Generator().manual_seed(1)
    linears = {path: s for path, s in model.shapes.linears.items() if path != model.head_path}

    def tensor(rows: int, columns: int, deviation: float) -> torch.Tensor:
        # Large ones are repeats of a small one: they cost the same, and are quickly made.
        few = torch.randn(min(rows, 64), min(columns, 512), generator=generator) * deviation
        times = (-(-rows // few.shape[0]), -(-columns // few.shape[1]))
        whole = few.repeat(times)[:rows, :columns]
        return whole.to(model.device, model.dtype, memory_format=torch.contiguous_format)

    adapters = {}
    for number, rank in enumerate(ranks):
        pairs = {
            path: LoraPair(
                tensor(rank, in_width, in_width**-0.5).contiguous(),
                tensor(out_width, rank, 0.3 * rank**-0.5).contiguous(),
                1.0,
            )
            for path, (out_width, in_width) in linears.items()
        }
        num_bytes = sum(pair.a.nbytes + pair.b.nbytes for pair in pairs.values())
        weights = AdapterWeights(num_bytes, pairs)
        adapters[AdapterKey("check", f"{number:064x}")] = runner.locate(weights)
    return adapters


def decode_plan(owners: Sequence[Row], context: int) -> StepPlan:
    """One row of each owner at position ``context``; equal owners stand together, None first."""
    count, width = len(owners), -(-(context + 1) // BLOCK_SIZE)
    starts = [row for row in range(count) if row == 0 or owners[row] != owners[row - 1]]
    roster = Roster(
        keys=tuple(f"request-{row}" for row in range(count)),
        adapters=tuple(owners[start] for start in starts),
        starts=np.array(starts, np.intp),
        num_prompt_tokens=np.full(count, context, np.int64),
        sampling=_greedy(count),
    )
    return StepPlan(
        step=1,
        decodes=Decodes(
            roster=roster,
            token_ids=np.arange(count, dtype=np.int64) % 7,
            positions=np.full(count, context, np.int64),
            block_tables=np.arange(count * width, dtype=np.int32).reshape(count, width),
            specs={},
        ),
    )


def _greedy(count: int) -> np.ndarray:
    sampling = np.zeros(count, SAMPLING)
    sampling["top_p"] = 1
    return sampling


def _steps(owners: Sequence[Row]) -> dict[str, StepPlan]:
    """A prompt of each owner, then a token of each after it."""
    greedy = SampleSpec(temperature=0.0, top_p=1.0, top_k=0, seed=0, position=0)
    prompts = tuple(
        Chunk(f"request-{n}", owner, tuple(range(n, n + 9)), 0, (n,), greedy)
        for n, owner in enumerate(owners)
    )
    return {"prompts": StepPlan(1, prompts), "decodes": decode_plan(owners, 9)}


def _run(runner: ModelRunner, plan: StepPlan, adapters: Adapters) -> None:
    runner.collect(runner.launch(runner.build(plan, adapters)))


def _drawn(logits: Tensor, specs: SampledSpecs) -> SampledRows:
    staging = Staging(logits.device)
    options = sampling_rows(specs, logits.shape[1], staging)
    staging.send()
    return sample(logits, options)


def _draws(setup: Setup) -> Check:
    """A seed gives the same tokens on the card as on the CPU."""
    rows, vocab_size = (16, 500) if setup.small else (96, 50_000)
    logits = 3 * torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(0))
    logits = logits.bfloat16().float()  # with many equals, as real logits have
    logits[9, 7] = float("nan")
    specs = SampledSpecs.of([_spec(row) for row in range(rows)])
    host, card = (
        _drawn(logits.to(device), specs) for device in (torch.device("cpu"), setup.device)
    )
    different = int((host.token_ids != card.token_ids).sum())
    same = not different and list(host.failed) == list(card.failed)
    return Check(
        "draws of a seed are the CPU's",
        same,
        rows,
        why=f"{different} rows differ" if not same else "",
    )


def _spec(row: int) -> SampleSpec:
    plain: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    return SampleSpec(seed=row, position=row, **(plain | _OPTIONS[row % len(_OPTIONS)]))
