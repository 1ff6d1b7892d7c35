"""Steps of 7B-shaped layers: adapters' cost, graphs, attention's cost beside its floors."""

from collections.abc import Iterator
from functools import partial

import torch

from loraplex.kernels.attention import Scoring, Spans
from loraplex.platform.bench.gpu.attention_ways import HeadShape, make_step, ways
from loraplex.platform.bench.gpu.ceilings import floor_ms
from loraplex.platform.bench.gpu.clock import captured, device_ms, wall_ms
from loraplex.platform.bench.gpu.layers import DTYPE, LLAMA_7B, Layers, ranks_in_turn
from loraplex.platform.bench.gpu.records import Ratio, Record, Time, equal_bits
from loraplex.platform.bench.gpu.stage import Setup

BATCH = 32
DISTINCT_TARGET = 0.90
_CONTEXT = 256
_LORA_STEPS = (  # rows, adapters, ranks
    (BATCH, 1, (16,)),
    (BATCH, 8, (16,)),
    (BATCH, BATCH, (16,)),
    (BATCH, BATCH, (8, 16, 32, 64)),
    (2048, 1, (16,)),
    (2048, 8, (16,)),
    (2048, 8, (8, 16, 32, 64)),
)


@torch.inference_mode()
def lora_times(setup: Setup) -> Iterator[Record]:
    """Time the linear layers of a 7B model without adapters and with."""
    steps = ((2, 2, (8, 16)),) if setup.small else _LORA_STEPS
    for num_rows in dict.fromkeys(rows for rows, *_ in steps):
        layers = Layers.random(setup, num_rows, 1, num_layers=1 if setup.small else 4)
        floor = partial(floor_ms, setup, dtype=DTYPE)
        weights = layers.num_weights
        dense_ms = device_ms(partial(layers.linears, None), setup.device)
        name = f"linear layers, {num_rows} rows"
        yield Time(f"{name}, base", dense_ms, floor(2 * weights, 2 * weights * num_rows))
        for _, count, ranks in (step for step in steps if step[0] == num_rows):
            tables = layers.adapters(ranks_in_turn(ranks, count))
            segments = layers.shared(tables)
            own = sum(p.a.numel() + p.b.numel() for t in tables for p in t.pairs if p is not None)
            with_ms = device_ms(partial(layers.linears, segments), setup.device)
            flops = 2 * (weights * num_rows + own * num_rows // count)
            title = f"{name}, {count} adapters r{'/'.join(map(str, ranks))}"
            yield Time(title, with_ms, floor(2 * (weights + own), flops))
            yield Ratio(f"{title}: with ÷ base", with_ms / dense_ms)


@torch.inference_mode()
def graphs(setup: Setup) -> Iterator[Record]:
    """Replay a step with adapters: the bits are those of running it, and the time is less."""
    layers = Layers.random(setup, *_size(setup), num_layers=2)
    segments = layers.shared(layers.adapters([16] * len(layers.x)))
    eager = layers.forward(segments).clone()
    yield equal_bits("a step that runs again has equal bits", layers.forward(segments), eager)
    if not setup.on_gpu:
        return
    kept: list[torch.Tensor] = []

    def step() -> None:
        kept[:] = [layers.forward(segments)]

    replay = captured(step)
    replay()
    torch.cuda.synchronize()
    yield equal_bits("a replayed step has the bits of one that runs", kept[0], eager)
    layers.x.mul_(0.5)
    again = layers.forward(segments).clone()
    replay()
    torch.cuda.synchronize()
    yield equal_bits("a replayed step sees other rows", kept[0], again)
    eager_ms = wall_ms(lambda: layers.forward(segments), setup.device)
    replay_ms = wall_ms(replay, setup.device)
    yield Time("2 layers with adapters, launched from Python", eager_ms)
    yield Time("2 layers with adapters, replayed", replay_ms)
    yield Ratio("launched ÷ replayed", eager_ms / replay_ms, 1.0)


@torch.inference_mode()
def stack_times(setup: Setup) -> Iterator[Record]:
    """Decode through a stack of 7B-shaped layers: each row its own adapter, one for all, none."""
    (rows, context), num_layers = _size(setup), 1 if setup.small else 8
    layers = Layers.random(setup, rows, context, num_layers=num_layers)
    tables = layers.adapters([16] * rows)
    steps = {
        "base": None,
        "one adapter r16": layers.shared(tables[:1]),
        f"{rows} distinct adapters r16": layers.shared(tables),
        f"{rows} distinct adapters r8/16/32/64": layers.shared(
            layers.adapters(ranks_in_turn((8, 16, 32, 64), rows))
        ),
    }
    base_bytes = 2 * layers.num_weights + layers.kv_bytes
    times = {}
    for name, segments in steps.items():
        own = (
            0
            if segments is None
            else sum(
                pair.a.nbytes + pair.b.nbytes
                for table in segments.tables
                for pair in table.pairs
                if pair is not None
            )
        )
        times[name] = device_ms(partial(layers.forward, segments), setup.device)
        floor = floor_ms(setup, base_bytes + own, 2 * layers.num_weights * rows, DTYPE)
        yield Time(f"{num_layers} layers, {rows} rows, {name}", times[name], floor)
    base, one, distinct, _ = times.values()
    yield Ratio(
        f"7B layers, {rows} rows r16: all distinct ÷ one adapter", one / distinct, DISTINCT_TARGET
    )
    yield Ratio(f"7B layers, {rows} rows r16: all distinct ÷ base", base / distinct)


def _size(setup: Setup) -> tuple[int, int]:
    """Rows of a decode step, and their positions."""
    return (2, 3) if setup.small else (BATCH, _CONTEXT)


@torch.inference_mode()
def attention_times(setup: Setup) -> Iterator[Record]:
    """Time each implementation at decodes and prompts, beside what it must read or multiply."""
    shapes = {"32/32 heads of 128": LLAMA_7B.heads, "32/8 heads of 128": HeadShape(32, 8, 128)}
    shapes = {"4/2 heads of 16": HeadShape(4, 2, 16)} if setup.small else shapes
    rows = 2 if setup.small else BATCH
    steps = {
        f"{rows} decodes at {c}": [(c, 1)] * rows
        for c in ((20,) if setup.small else (256, 1024, 4096))
    }
    steps |= {f"a prompt of {n}": [(0, n)] for n in ((9,) if setup.small else (512, 2048))}
    for shape_name, shape in shapes.items():
        scoring = Scoring(shape.dim**-0.5)
        for name, sequences in steps.items():
            step = make_step(sequences, shape, DTYPE, setup.device)
            seen = sum(start * n + n * (n + 1) // 2 for start, n in sequences)
            num_bytes = step.cache.keys.nbytes + step.cache.values.nbytes + 2 * step.q.nbytes
            floor = floor_ms(setup, num_bytes, 4 * shape.heads * shape.dim * seen, DTYPE)
            for way, attention in ways(step.layout, [scoring], DTYPE, setup.device):
                if isinstance(attention, str):
                    continue  # the stage that compares them tells why
                metadata = attention.plan(Spans.of(step.spans))
                attend = partial(
                    attention.attend, step.q, step.k, step.v, step.cache, metadata, scoring
                )
                taken_ms = device_ms(attend, setup.device)
                yield Time(f"attention, {way}, {name}, {shape_name}", taken_ms, floor)
