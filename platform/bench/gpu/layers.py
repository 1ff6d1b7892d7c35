"""Decoder layers of a 7B model, as kernels alone compute them: no engine, no model library."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle, islice, pairwise
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from loraplex.kernels.attention import Attention, KvCache, Scoring, Spans
from loraplex.kernels.lora import LoraSegment, add_lora
from loraplex.kernels.segments import (
    LoraTable,
    Slices,
    StepSegments,
    TableRows,
    lora_table,
    step_segments,
)
from loraplex.platform.bench.gpu.attention_ways import BLOCK_SIZE, HeadShape, make_step, ways
from loraplex.platform.bench.gpu.stage import Setup

DTYPE = torch.bfloat16


class LayerShape(NamedTuple):
    """Sizes of one decoder layer."""

    heads: HeadShape
    inner: int

    @property
    def hidden(self) -> int:
        """Width of a row."""
        return self.heads.heads * self.heads.dim

    @property
    def groups(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """Outputs of modules that share an input, and its width: q, k, v; o; gate, up; down."""
        hidden, kv = self.hidden, self.heads.kv_heads * self.heads.dim
        return (
            ((hidden, kv, kv), hidden),
            ((hidden,), hidden),
            ((self.inner, self.inner), hidden),
            ((hidden,), self.inner),
        )

    @property
    def modules(self) -> list[tuple[int, int]]:
        """``(out, in)`` of each linear layer, in this order."""
        return [(width, in_width) for widths, in_width in self.groups for width in widths]


LLAMA_7B = LayerShape(HeadShape(32, 32, 128), 11008)
_TINY = LayerShape(HeadShape(4, 2, 16), 80)


@dataclass(frozen=True, slots=True)
class Layers:
    """A stack of layers with random weights, and one step of decodes through it."""

    shape: LayerShape
    weights: tuple[tuple[Tensor, ...], ...]
    """By layer and group, ``[sum of out, in]``."""
    slices: tuple[tuple[Slices, ...], ...]
    caches: tuple[KvCache, ...]
    attention: Attention[Any]
    metadata: Any
    x: Tensor
    """``[rows, hidden]``: what the first layer sees."""
    gain: Tensor

    @classmethod
    def random(cls, setup: Setup, rows: int, context: int, *, num_layers: int) -> Self:
        """Decodes of ``rows`` sequences at position ``context``."""
        shape, device = _TINY if setup.small else LLAMA_7B, setup.device
        generator = torch.Generator(device).manual_seed(0)

        def matrix(out_width: int, in_width: int) -> Tensor:
            values = torch.randn(out_width, in_width, generator=generator, device=device)
            return values.mul_(in_width**-0.5).to(DTYPE)

        weights = [
            tuple(matrix(sum(widths), in_width) for widths, in_width in shape.groups)
            for _ in range(num_layers)
        ]
        step = make_step([(context, 1)] * rows, shape.heads, DTYPE, device)
        copies = [KvCache(*(t.clone() for t in step.cache)) for _ in range(num_layers - 1)]
        _, attention = next(ways(step.layout, [_scoring(shape)], DTYPE, device))
        assert not isinstance(attention, str), "the first is always there"
        return cls(
            shape=shape,
            weights=tuple(weights),
            slices=tuple(_slices(shape, layer, device) for layer in range(num_layers)),
            caches=(step.cache, *copies),
            attention=attention,
            metadata=attention.plan(Spans.of(step.spans)),
            x=matrix(rows, shape.hidden) * shape.hidden**0.5,
            gain=torch.ones(shape.hidden, dtype=DTYPE, device=device),
        )

    def adapters(self, ranks: Sequence[int]) -> list[LoraTable]:
        """Return random adapters on all linear layers."""
        device, shapes = self.x.device, self.shape.modules * len(self.weights)

        def pair(rank: int, out_width: int, in_width: int) -> LoraSegment:
            a = torch.randn(rank, in_width, device=device).mul_(in_width**-0.5).to(DTYPE)
            b = torch.randn(out_width, rank, device=device).mul_(0.1 * rank**-0.5).to(DTYPE)
            return LoraSegment(0, 0, a, b, 1.0)

        return [
            lora_table([pair(rank, *s) for s in shapes], shapes, dtype=DTYPE, device=device)
            for rank in ranks
        ]

    def shared(self, tables: Sequence[LoraTable]) -> StepSegments:
        """Rows in equal shares to these adapters."""
        each = len(self.x) // len(tables)
        bounds = pairwise([0, *accumulate([each] * len(tables))])
        rows = [TableRows(low, high, t) for (low, high), t in zip(bounds, tables, strict=True)]
        return step_segments(rows)

    def linears(self, segments: StepSegments | None) -> None:
        """The linear layers alone, each on rows of its width."""
        wide = self.x.new_ones(len(self.x), self.shape.inner)
        for weights, slices in zip(self.weights, self.slices, strict=True):
            for weight, of in zip(weights, slices, strict=True):
                _linear(self.x if of.in_width == self.shape.hidden else wide, weight, of, segments)

    def forward(self, segments: StepSegments | None) -> Tensor:
        """Return what the last layer makes of ``x``."""
        hidden = self.x
        for weights, slices, cache in zip(self.weights, self.slices, self.caches, strict=True):
            qkv, o, gate_up, down = zip(weights, slices, strict=True)
            normed = rms_norm(hidden, (self.shape.hidden,), self.gain)
            attended = self._attended(_linear(normed, *qkv, segments), cache)
            hidden = hidden + _linear(attended, *o, segments)
            normed = rms_norm(hidden, (self.shape.hidden,), self.gain)
            gate, up = _linear(normed, *gate_up, segments).chunk(2, dim=1)
            hidden = hidden + _linear(silu(gate) * up, *down, segments)
        return hidden

    def _attended(self, qkv: Tensor, cache: KvCache) -> Tensor:
        heads = self.shape.heads
        by_head = qkv.view(len(qkv), -1, heads.dim)
        q, k, v = by_head.split([heads.heads, heads.kv_heads, heads.kv_heads], dim=1)  # type: ignore[no-untyped-call]  # torch has no types here
        scoring = _scoring(self.shape)
        attended = self.attention.attend(q, k, v, cache, self.metadata, scoring)
        return attended.flatten(1)

    @property
    def num_weights(self) -> int:
        """Of all linear layers."""
        return sum(weight.numel() for layer in self.weights for weight in layer)

    @property
    def kv_bytes(self) -> int:
        """That a step reads."""
        return sum(cache.keys.nbytes + cache.values.nbytes for cache in self.caches)


def ranks_in_turn(ranks: Sequence[int], count: int) -> list[int]:
    """``count`` of them."""
    return [*islice(cycle(ranks), count)]


def blocks_of(context: int) -> int:
    """KV blocks of a sequence whose newest token is at ``context``."""
    return -(-(context + 1) // BLOCK_SIZE)


def _scoring(shape: LayerShape) -> Scoring:
    return Scoring(shape.heads.dim**-0.5)


def _slices(shape: LayerShape, layer: int, device: torch.device) -> tuple[Slices, ...]:
    first = layer * len(shape.modules)
    found = []
    for widths, in_width in shape.groups:
        numbers = range(first, first + len(widths))
        found.append(Slices.of(numbers, widths, in_width, device))
        first += len(widths)
    return tuple(found)


def _linear(x: Tensor, weight: Tensor, slices: Slices, segments: StepSegments | None) -> Tensor:
    y = linear(x, weight)
    located = segments.at(slices) if segments is not None else None
    if located is not None:
        add_lora(y, x, located)
    return y
