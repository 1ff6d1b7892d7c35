from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from loraplex.kernels.attention import KvCache, Scoring, allocate_kv_cache, paged_attention
from loraplex.kernels.attention_plan import KvLayout, Span, Spans, Window, plan_attention
from loraplex.kernels.attention_reference import (
    dense_attention_reference,
    paged_attention_reference,
)

KEY_DIM = 16
CPU = torch.device("cpu")
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}  # relative and absolute
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
    q: Tensor
    k: Tensor
    v: Tensor
    cache: KvCache
    spans: list[Span]
    layout: KvLayout

    def attend(self, scoring: Scoring = PLAIN) -> Tensor:
        windows = [scoring.window]
        spans = Spans.of(self.spans)
        metadata = plan_attention(spans, self.layout, windows, dtype=self.q.dtype, device=CPU)
        return paged_attention(self.q, self.k, self.v, self.cache, metadata, scoring)

    def reference(self, scoring: Scoring = PLAIN) -> Tensor:
        return paged_attention_reference(self.q, self.cache, self.spans, scoring)


def make_step(
    batch: list[tuple[int, int]],
    block_size: int = 16,
    heads: tuple[int, int] = (6, 2),
    value_dim: int = KEY_DIM,
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
    cache = allocate_kv_cache(layout, heads[1], (KEY_DIM, value_dim), dtype=dtype, device=CPU)
    cache.keys[:-1].normal_()
    cache.values[:-1].normal_()
    rows = sum(length for _, length in batch)
    return Step(
        q=torch.randn(rows, heads[0], KEY_DIM).to(dtype),
        k=torch.randn(rows, heads[1], KEY_DIM).to(dtype),
        v=torch.randn(rows, heads[1], value_dim).to(dtype),
        cache=cache,
        spans=spans,
        layout=layout,
    )


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("window", [None, 1, 4, 64])
@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("softcap", [None, 1.5])  # most scores here lie within ±3
@pytest.mark.parametrize("batch", BATCHES)
def test_attention_equals_the_reference(
    batch: str, softcap: float | None, block_size: int, window: Window, dtype: torch.dtype
) -> None:
    step = make_step(BATCHES[batch], block_size, dtype=dtype)
    scoring = Scoring(0.3, window, softcap)
    out = step.attend(scoring)
    expected = step.reference(scoring)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("heads", [(1, 1), (3, 3), (9, 3), (8, 1)])
@pytest.mark.parametrize("value_dim", [KEY_DIM, 8])
@pytest.mark.parametrize("scoring", [PLAIN, PLAIN._replace(softcap=1.5)], ids=["plain", "capped"])
def test_heads_share_the_keys_of_their_group(
    scoring: Scoring, heads: tuple[int, int], value_dim: int
) -> None:
    step = make_step(BATCHES["all kinds"], heads=heads, value_dim=value_dim)
    out, expected = step.attend(scoring), step.reference(scoring)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_step_writes_its_own_slots_only() -> None:
    step = make_step(BATCHES["all kinds"])
    before = step.cache.keys.clone()
    step.attend()
    written = {
        (span.block_table[position // 16], position % 16)
        for span in step.spans
        for position in range(span.start, span.start + span.length)
    }
    changed = (step.cache.keys != before).flatten(2).any(dim=2).nonzero().tolist()
    assert {tuple(slot) for slot in changed} == written


def test_slots_of_other_sequences_may_hold_anything() -> None:
    step = make_step(BATCHES["all kinds"])
    expected = step.attend()
    own = {
        span.block_table[position // 16] * 16 + position % 16
        for span in step.spans
        for position in range(span.start + span.length)
    }
    others = sorted(set(range(step.layout.null_slot)) - own)
    step.cache.keys.flatten(0, 1)[others] = float("nan")
    step.cache.values.flatten(0, 1)[others] = float("inf")
    assert torch.equal(step.attend(), expected)


def test_a_sequence_in_chunks_equals_the_sequence_at_once() -> None:
    whole = make_step([(0, 29)])
    expected = whole.attend()
    whole.cache.keys[:-1].zero_()
    (span,) = whole.spans
    parts = []
    for start, end in [(0, 8), (8, 9), (9, 25), (25, 29)]:
        rows = slice(start, end)
        part = Step(
            whole.q[rows],
            whole.k[rows],
            whole.v[rows],
            whole.cache,
            [Span(start, end - start, span.block_table)],
            whole.layout,
        )
        parts.append(part.attend())
    torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-5, atol=1e-5)


def test_sequences_of_unlike_length_are_not_padded_to_the_longest() -> None:
    spans = [Span(start, 1, tuple(range(32))) for start in (10, 20, 500)]
    layout = KvLayout(num_blocks=32, block_size=16)
    metadata = plan_attention(Spans.of(spans), layout, [None], dtype=torch.float32, device=CPU)
    shapes = [tuple(group.mask.shape) for group in metadata.plans[None].decodes]
    assert shapes == [(2, 1, 1, 21), (1, 1, 1, 501)]


@pytest.mark.parametrize("window", [None, 1, 4, 64])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("rows", [1, 2, 17])
def test_the_dense_reference_of_a_whole_sequence_equals_the_paged_one(
    rows: int, window: Window, softcap: float | None
) -> None:
    step = make_step([(0, rows)], value_dim=8)
    scoring = Scoring(0.3, window, softcap)
    step.attend(scoring)  # puts keys and values into the cache
    expected = step.reference(scoring)
    found = dense_attention_reference(step.q, step.k, step.v, scoring)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
