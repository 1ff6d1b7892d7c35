"""Steps for every implementation of ``Attention``: sequences over permuted blocks of a pool."""

from dataclasses import dataclass
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
    allocate_kv_cache,
)
from loraplex.kernels.attention_reference import paged_attention_reference
from loraplex.kernels.attention_torch import TorchAttention

KEY_DIM = 16
CPU = torch.device("cpu")
TOLERANCES = {  # relative and absolute
    torch.float32: 1e-5,
    torch.bfloat16: 2e-2,
    torch.float16: 2e-3,
}
PLAIN = Scoring(scaling=0.3)
BATCHES = {  # (start, length) of each sequence
    "one token": [(0, 1)],
    "decodes of one length": [(5, 1), (5, 1), (5, 1)],
    "decodes of many lengths": [(0, 1), (1, 1), (64, 1), (15, 1), (200, 1), (16, 1)],
    "whole prompt": [(0, 17)],
    "prompts": [(0, 2), (0, 33), (0, 3)],
    "middle of a prompt": [(16, 7)],
    "all kinds": [(31, 1), (0, 5), (7, 13), (0, 1), (90, 1), (3, 2)],
}


@dataclass
class Step:
    """Queries, keys and values of a step, and what earlier steps left."""

    q: Tensor
    k: Tensor
    v: Tensor
    cache: KvCache
    spans: list[Span]
    layout: KvLayout

    def attend(self, scoring: Scoring = PLAIN, attention: Attention[Any] | None = None) -> Tensor:
        """By torch, if no implementation is given."""
        if attention is None:
            attention = TorchAttention(self.layout, [scoring.window], self.q.dtype, CPU)
        metadata = attention.plan(Spans.of(self.spans))
        return attention.attend(self.q, self.k, self.v, self.cache, metadata, scoring)

    def reference(self, scoring: Scoring = PLAIN) -> Tensor:
        """In float64, once the step is written."""
        return paged_attention_reference(self.q, self.cache, self.spans, scoring)


def make_step(
    batch: list[tuple[int, int]],
    block_size: int = 16,
    heads: tuple[int, int] = (6, 2),
    dims: tuple[int, int] = (KEY_DIM, KEY_DIM),
    dtype: torch.dtype = torch.float32,
) -> Step:
    """Sequences over permuted blocks, with random keys and values of earlier steps."""
    torch.manual_seed(len(batch) * block_size)
    counts = [-(-(start + length) // block_size) for start, length in batch]
    layout = KvLayout(num_blocks=sum(counts) + 3, block_size=block_size)
    free = (1 + torch.randperm(layout.num_blocks - 1)).tolist()
    spans = [
        Span(start, length, tuple(free.pop() for _ in range(count)))
        for (start, length), count in zip(batch, counts, strict=True)
    ]
    cache = allocate_kv_cache(layout, heads[1], dims, dtype=dtype, device=CPU)
    cache.keys[:-1].normal_()
    cache.values[:-1].normal_()
    rows = sum(length for _, length in batch)
    return Step(
        q=torch.randn(rows, heads[0], dims[0]).to(dtype),
        k=torch.randn(rows, heads[1], dims[0]).to(dtype),
        v=torch.randn(rows, heads[1], dims[1]).to(dtype),
        cache=cache,
        spans=spans,
        layout=layout,
    )
