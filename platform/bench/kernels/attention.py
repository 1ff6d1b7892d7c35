"""Attention of one step over paged keys and values."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from loraplex.engine.gate import LayerShape
from loraplex.kernels.attention import (
    Attention,
    KvCache,
    KvLayout,
    Scoring,
    Span,
    Spans,
    allocate_kv_cache,
)
from loraplex.kernels.attention_choice import choose_attention
from loraplex.kernels.attention_torch import TorchAttention
from loraplex.kernels.cpu_kernels import CpuKernels
from loraplex.platform.bench.floors import Work
from loraplex.platform.bench.kernels.case import OURS, Absent, Case, Contender
from loraplex.platform.bench.kernels.plan import KernelPlan
from loraplex.platform.bench.kernels.shape import KernelShape
from loraplex.platform.bench.spans import mixed_spans

NUM_DECODES = 16
_BLOCK_SIZE = 16
_CACHE_BYTES = 384 << 20
"""Of all layers' keys and values, at least: beyond a processor's caches, where that can be."""
_TORCH = "ours, torch"


def attention_cases(plan: KernelPlan, kernels: CpuKernels | None) -> Iterator[Case]:
    """Yield decodes at each context, then each prompt, in each dtype."""
    steps = [
        *((f"{NUM_DECODES} decodes at {at}", [(at, 1)] * NUM_DECODES) for at in plan.contexts),
        *((f"a prompt of {rows}", [(0, rows)]) for rows in plan.prompts),
    ]
    for dtype in plan.dtypes:
        for name, sequences in steps:
            step = _Step.of(plan, sequences, dtype)
            yield Case(
                op="attention",
                name=name,
                rows=len(step.q),
                layers=len(step.caches),
                dtype=dtype,
                work=step.work(),
                expected=step.expected(),
                contenders=(
                    *_implementations(step, kernels),
                    Contender("gather + SDPA, each alone", step.run_alone, step.output_alone),
                ),
            )


@dataclass(frozen=True, slots=True)
class _Step:
    """Rows of a step over caches that hold what came before."""

    q: Tensor
    k: Tensor
    v: Tensor
    caches: tuple[KvCache, ...]
    spans: tuple[Span, ...]
    layout: KvLayout
    scoring: Scoring

    @classmethod
    def of(cls, plan: KernelPlan, sequences: Sequence[tuple[int, int]], dtype: torch.dtype) -> Self:
        """``sequences`` have a first position and rows each."""
        shape = plan.shape
        generator = torch.Generator().manual_seed(plan.seed)
        spans = mixed_spans(sequences, _BLOCK_SIZE, generator)
        layout = KvLayout(sum(len(span.block_table) for span in spans), _BLOCK_SIZE)
        rows = sum(length for _, length in sequences)

        def normal(*sizes: int) -> Tensor:
            return torch.randn(sizes, generator=generator).to(dtype)

        kv = (shape.num_kv_heads, shape.head_dim)
        first = _filled_cache(layout, shape, normal(_BLOCK_SIZE, *kv))
        layers = max(1, min(plan.layers, -(-_CACHE_BYTES // (2 * first.keys.nbytes))))
        copies = [KvCache(first.keys.clone(), first.values.clone()) for _ in range(layers - 1)]
        return cls(
            q=normal(rows, shape.num_heads, shape.head_dim),
            k=normal(rows, *kv),
            v=normal(rows, *kv),
            caches=(first, *copies),
            spans=spans,
            layout=layout,
            scoring=Scoring(shape.head_dim**-0.5),
        )

    def work(self) -> Work:
        """What a row sees is read once for each of its sequence's rows together."""
        heads, head_dim = self.q.shape[1:]
        ends = [span.start + span.length for span in self.spans]
        kv_row_bytes = 2 * self.k[0].nbytes
        num_bytes = sum(ends) * kv_row_bytes + 2 * self.q.nbytes + 2 * self.k.nbytes
        seen = sum(
            sum(range(s.start + 1, end + 1)) for s, end in zip(self.spans, ends, strict=True)
        )
        layers = len(self.caches)
        return Work(layers * num_bytes, layers * 4 * heads * head_dim * seen)

    def contender(self, name: str, attention: Attention[Any]) -> Contender:
        """An implementation of the port; planning is done once, as for all layers of a model."""
        metadata = attention.plan(Spans.of(self.spans))

        def attend(cache: KvCache) -> Tensor:
            return attention.attend(self.q, self.k, self.v, cache, metadata, self.scoring)

        def run() -> None:
            for cache in self.caches:
                attend(cache)

        return Contender(name, run, lambda: attend(self.caches[0]))

    def run_alone(self) -> None:
        """Attend each sequence by itself."""
        for cache in self.caches:
            self._attend_alone(cache)

    def output_alone(self) -> Tensor:
        """What that gives for the first layer."""
        return self._attend_alone(self.caches[0])

    def expected(self) -> Tensor:
        """Rows of the first layer, by sums in float64, one head after the other."""
        outputs = []
        for span, rows, slots in self._sequences():
            keys, values = self._seen(self.caches[0], rows, slots)
            places = torch.arange(span.start, span.start + span.length)
            hidden = torch.arange(len(keys)) > places[:, None]
            heads = []
            for head, query in enumerate(self.q[rows].double().unbind(1)):
                kv_head = head * keys.shape[1] // self.q.shape[1]
                scores = self.scoring.scaling * query @ keys[:, kv_head].double().T
                weights = scores.masked_fill_(hidden, -torch.inf).softmax(dim=-1)
                heads.append(weights @ values[:, kv_head].double())
            outputs.append(torch.stack(heads, dim=1))
        return torch.cat(outputs)

    def _attend_alone(self, cache: KvCache) -> Tensor:
        outputs = []
        for span, rows, slots in self._sequences():
            keys, values = self._seen(cache, rows, slots)
            out = scaled_dot_product_attention(
                self.q[rows].transpose(0, 1)[None],
                keys.transpose(0, 1)[None],
                values.transpose(0, 1)[None],
                is_causal=span.start == 0,
                scale=self.scoring.scaling,
                enable_gqa=self.q.shape[1] != self.k.shape[1],
            )
            outputs.append(out[0].transpose(0, 1))
        return torch.cat(outputs)

    def _sequences(self) -> Iterator[tuple[Span, slice, Tensor]]:
        """Each sequence with its rows of the step and the slots of all that it sees."""
        ends = list(accumulate(span.length for span in self.spans))
        for span, end in zip(self.spans, ends, strict=True):
            slots = torch.tensor(span.block_table)[:, None] * _BLOCK_SIZE + torch.arange(
                _BLOCK_SIZE
            )
            yield (
                span,
                slice(end - span.length, end),
                slots.flatten()[: span.start + span.length],
            )

    def _seen(self, cache: KvCache, rows: slice, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Write a sequence's own rows, then gather all of it."""
        keys, values = cache.keys.flatten(0, 1), cache.values.flatten(0, 1)
        own = slots[-(rows.stop - rows.start) :]
        keys[own], values[own] = self.k[rows], self.v[rows]
        return keys[slots], values[slots]


def _implementations(step: _Step, kernels: CpuKernels | None) -> Iterator[Contender | Absent]:
    device, dtype = torch.device("cpu"), step.q.dtype
    head_dim = step.q.shape[2]
    layer = LayerShape(step.k.shape[1], head_dim, head_dim, None)
    chosen = choose_attention(step.layout, {layer}, dtype=dtype, device=device, kernels=kernels)
    if isinstance(chosen, TorchAttention):
        yield Absent(OURS, "attention is torch's here: no compiled kernel of it is at hand")
    else:
        yield step.contender(OURS, chosen)
    yield step.contender(_TORCH, TorchAttention(step.layout, {None}, dtype, device))


def _filled_cache(layout: KvLayout, shape: KernelShape, block: Tensor) -> KvCache:
    """Every block begins as ``block``, scaled by its number, so that no two are alike."""
    dims = (shape.head_dim, shape.head_dim)
    cache = allocate_kv_cache(
        layout, shape.num_kv_heads, dims, dtype=block.dtype, device=block.device
    )
    factors = torch.linspace(-1, 1, layout.num_blocks).to(block.dtype)[:, None, None, None]
    cache.keys[:-1] = block * factors
    cache.values[:-1] = block.flip(0) * factors
    return cache
