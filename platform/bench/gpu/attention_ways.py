"""The implementations of attention that a card may have, and steps to try them on."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from loraplex.kernels.attention import (
    Attention,
    KvCache,
    KvLayout,
    Scoring,
    Span,
    Spans,
    Window,
    allocate_kv_cache,
)
from loraplex.kernels.attention_paged import TritonAttention, VarlenAttention, varlen_attn_of
from loraplex.kernels.attention_torch import TorchAttention
from loraplex.kernels.paged_step import PagedLayout
from loraplex.platform.bench.spans import mixed_spans

BLOCK_SIZE = 16
TRITON, VARLEN, TORCH = "Triton", "varlen_attn", "torch"


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Heads of one layer."""

    heads: int
    kv_heads: int
    dim: int


@dataclass(frozen=True, slots=True)
class Step:
    """Rows of a step over a filled cache of one layer."""

    q: Tensor
    k: Tensor
    v: Tensor
    cache: KvCache
    spans: tuple[Span, ...]
    layout: KvLayout

    def attended(self, attention: Attention[Any], scoring: Scoring) -> Tensor:
        """Return what an implementation makes of it."""
        metadata = attention.plan(Spans.of(self.spans))
        return attention.attend(self.q, self.k, self.v, self.cache, metadata, scoring)

    def expected(self, scoring: Scoring) -> Tensor:
        """The same by sums in float64, sequence by sequence; the cache holds the step already."""
        outputs = []
        bounds = pairwise([0, *accumulate(span.length for span in self.spans)])
        for span, (first, end) in zip(self.spans, bounds, strict=True):
            keys, values = (
                self._seen(tensor, span).transpose(0, 1) for tensor in self.cache
            )  # [heads, keys, dim]
            queries = self.q[first:end].double().transpose(0, 1)
            scores = scoring.scaling * queries @ keys.transpose(1, 2)
            if scoring.softcap is not None:
                scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
            at = torch.arange(span.start, span.start + span.length, device=self.q.device)[:, None]
            places = torch.arange(keys.shape[1], device=self.q.device)
            hidden = places > at
            if scoring.window is not None:
                hidden |= places <= at - scoring.window
            weights = scores.masked_fill_(hidden, -torch.inf).softmax(dim=-1)
            outputs.append((weights @ values).transpose(0, 1))
        return torch.cat(outputs)

    def _seen(self, stored: Tensor, span: Span) -> Tensor:
        """A sequence's keys or values, ``[keys, heads, dim]`` float64."""
        blocks = stored[torch.tensor(span.block_table, device=stored.device)]
        own = blocks.flatten(0, 1)[: span.start + span.length].double()
        return own.repeat_interleave(self.q.shape[1] // own.shape[1], dim=1)


def make_step(
    sequences: Sequence[tuple[int, int]],
    shape: HeadShape,
    dtype: torch.dtype,
    device: torch.device,
) -> Step:
    """``sequences`` have a first position and a number of rows each; their blocks are mixed."""
    generator = torch.Generator(device).manual_seed(0)
    spans = mixed_spans(sequences, BLOCK_SIZE, torch.Generator().manual_seed(0))
    layout = KvLayout(sum(len(span.block_table) for span in spans), BLOCK_SIZE)
    rows = sum(length for _, length in sequences)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator, device=device).to(dtype)

    cache = allocate_kv_cache(
        layout, shape.kv_heads, (shape.dim, shape.dim), dtype=dtype, device=device
    )
    for stored in cache:
        stored[:-1] = normal(*stored[:-1].shape)
    return Step(
        q=normal(rows, shape.heads, shape.dim),
        k=normal(rows, shape.kv_heads, shape.dim),
        v=normal(rows, shape.kv_heads, shape.dim),
        cache=cache,
        spans=spans,
        layout=layout,
    )


def ways(
    layout: KvLayout,
    scorings: Collection[Scoring],
    dtype: torch.dtype,
    device: torch.device,
) -> Iterator[tuple[str, Attention[Any] | str]]:
    """Each implementation by name, or why it is not there."""
    paged = PagedLayout(layout.block_size, device)
    yield TRITON, TritonAttention(paged)
    yield VARLEN, _varlen(paged, scorings, dtype)
    windows: set[Window] = {scoring.window for scoring in scorings}
    yield TORCH, TorchAttention(layout, windows, dtype, device)


def _varlen(
    layout: PagedLayout, scorings: Collection[Scoring], dtype: torch.dtype
) -> VarlenAttention | str:
    if layout.device.type != "cuda":
        return "for GPUs only"
    if dtype not in {torch.bfloat16, torch.float16}:
        return "for 16 bits only"
    if any(scoring.softcap is not None for scoring in scorings):
        return "has no soft cap"
    varlen_attn = varlen_attn_of(layout.device)
    if varlen_attn is None:
        return "needs compute capability 9.0 and flash_attn_interface"
    return VarlenAttention(layout, varlen_attn)
