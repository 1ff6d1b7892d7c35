from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.kernels.attention_cases import (
    BATCHES,
    CPU,
    KEY_DIM,
    PLAIN,
    TOLERANCES,
    Step,
    make_step,
)

from loraplex.kernels.attention import Attention, KvLayout, Scoring, Span, Spans, Window
from loraplex.kernels.attention_plan import plan_attention
from loraplex.kernels.attention_reference import dense_attention_reference
from loraplex.kernels.attention_torch import TorchAttention
from loraplex.kernels.cpu_kernels import CpuKernels

Attend = Callable[[Step, Scoring], torch.Tensor]


@pytest.fixture(params=["torch", "compiled"])
def attend(request: pytest.FixtureRequest, compiled_kernels: CpuKernels) -> Attend:
    """Each implementation for CPUs."""

    def by(step: Step, scoring: Scoring) -> torch.Tensor:
        attention: Attention[Any] = compiled_kernels.attention
        if request.param == "torch":
            attention = TorchAttention(step.layout, [scoring.window], step.q.dtype, CPU)
        return step.attend(scoring, attention)

    return by


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [None, 1, 4, 64])
@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("softcap", [None, 1.5])  # most scores here lie within ±3
@pytest.mark.parametrize("batch", BATCHES)
def test_attention_equals_the_reference(
    batch: str,
    softcap: float | None,
    block_size: int,
    window: Window,
    dtype: torch.dtype,
    attend: Attend,
) -> None:
    step = make_step(BATCHES[batch], block_size, dtype=dtype)
    scoring = Scoring(0.3, window, softcap)
    out = attend(step, scoring)
    expected = step.reference(scoring)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("heads", [(1, 1), (3, 3), (9, 3), (8, 1)])
@pytest.mark.parametrize("value_dim", [KEY_DIM, 8])
@pytest.mark.parametrize("scoring", [PLAIN, PLAIN._replace(softcap=1.5)], ids=["plain", "capped"])
def test_heads_share_the_keys_of_their_group(
    scoring: Scoring, heads: tuple[int, int], value_dim: int, attend: Attend
) -> None:
    step = make_step(BATCHES["all kinds"], heads=heads, dims=(KEY_DIM, value_dim))
    out, expected = attend(step, scoring), step.reference(scoring)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_step_writes_its_own_slots_only(attend: Attend) -> None:
    step = make_step(BATCHES["all kinds"])
    before = step.cache.keys.clone()
    attend(step, PLAIN)
    written = {
        (span.block_table[position // 16], position % 16)
        for span in step.spans
        for position in range(span.start, span.start + span.length)
    }
    changed = (step.cache.keys != before).flatten(2).any(dim=2).nonzero().tolist()
    assert {tuple(slot) for slot in changed} == written


@pytest.mark.parametrize("scoring", [PLAIN, Scoring(0.3, 4, 1.5)], ids=["plain", "windows"])
def test_slots_of_other_sequences_may_hold_anything(attend: Attend, scoring: Scoring) -> None:
    step = make_step(BATCHES["all kinds"])
    expected = attend(step, scoring)
    own = {
        span.block_table[position // 16] * 16 + position % 16
        for span in step.spans
        for position in range(span.start + span.length)
    }
    others = sorted(set(range(step.layout.null_slot)) - own)
    step.cache.keys.flatten(0, 1)[others] = float("nan")
    step.cache.values.flatten(0, 1)[others] = float("inf")
    assert torch.equal(attend(step, scoring), expected)


def test_a_sequence_in_chunks_equals_the_sequence_at_once(attend: Attend) -> None:
    whole = make_step([(0, 29)])
    expected = attend(whole, PLAIN)
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
        parts.append(attend(part, PLAIN))
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
    step = make_step([(0, rows)], dims=(KEY_DIM, 8))
    scoring = Scoring(0.3, window, softcap)
    step.attend(scoring)  # puts keys and values into the cache
    expected = step.reference(scoring)
    found = dense_attention_reference(step.q, step.k, step.v, scoring)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
