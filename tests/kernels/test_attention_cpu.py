"""Compiled attention of CPUs: every form, and that a row's bits depend on its sequence alone."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.attention_cases import BATCHES, PLAIN, TOLERANCES, Step, make_step
from torch import Tensor

from loraplex.kernels.attention import KvCache, Scoring, Span, Spans
from loraplex.kernels.attention_cpu import CpuAttention
from loraplex.kernels.cpu_kernels import CpuKernels

LONG = [(150, 1), (0, 133), (64, 64), (0, 1), (63, 2), (1000, 1)]
GEMMA = Scoring(0.1, 70, 2.0)


@pytest.fixture
def attention(any_kernels: CpuKernels) -> CpuAttention:
    return any_kernels.attention


def assert_equals_reference(step: Step, scoring: Scoring, attention: CpuAttention) -> None:
    out, tolerance = step.attend(scoring, attention), TOLERANCES[step.q.dtype]
    expected = step.reference(scoring)
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("heads", "dims"),
    [
        ((9, 3), (64, 64)),
        ((2, 2), (72, 72)),
        ((8, 1), (96, 96)),
        ((9, 1), (128, 128)),
        ((4, 2), (192, 128)),
        ((2, 1), (256, 256)),
        ((5, 1), (7, 33)),
        ((71, 1), (16, 16)),
        ((20, 20), (8, 8)),
    ],
    ids=str,
)
@pytest.mark.parametrize("scoring", [PLAIN._replace(scaling=0.1), GEMMA], ids=["plain", "Gemma"])
@pytest.mark.parametrize("block_size", [4, 17])
def test_heads_may_have_any_number_and_width(
    heads: tuple[int, int],
    dims: tuple[int, int],
    block_size: int,
    scoring: Scoring,
    attention: CpuAttention,
) -> None:
    step = make_step([(70, 1), (0, 67), (63, 3)], block_size, heads=heads, dims=dims)
    assert_equals_reference(step, scoring, attention)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scoring", [PLAIN, GEMMA], ids=["plain", "Gemma"])
def test_long_sequences_equal_the_reference(
    dtype: torch.dtype, scoring: Scoring, attention: CpuAttention
) -> None:
    assert_equals_reference(make_step(LONG, dtype=dtype), scoring, attention)


def chunks_of(step: Step, cuts: list[int]) -> Iterator[Step]:
    """A step's one sequence, cut at these rows."""
    (span,) = step.spans
    for start, end in pairwise(cuts):
        part = span._replace(start=span.start + start, length=end - start)
        q, k, v = (each[start:end] for each in (step.q, step.k, step.v))
        yield replace(step, q=q, k=k, v=v, spans=[part])


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_bits_do_not_depend_on_how_a_prompt_is_cut(
    data: st.DataObject, compiled_kernels: CpuKernels
) -> None:
    length = data.draw(st.integers(2, 200))
    group, kv_heads = data.draw(st.sampled_from([(1, 2), (3, 3), (7, 1)]))
    scoring = data.draw(st.sampled_from([PLAIN, Scoring(0.3, 33), GEMMA]))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    heads = (group * kv_heads, kv_heads)
    step = make_step([(0, length)], data.draw(st.integers(1, 20)), heads, (64, 40), dtype)
    whole = step.attend(scoring, compiled_kernels.attention)
    inner = data.draw(st.sets(st.integers(1, length - 1), max_size=6))
    cuts = sorted({0, length, *inner})
    parts = [chunk.attend(scoring, compiled_kernels.attention) for chunk in chunks_of(step, cuts)]
    assert torch.equal(torch.cat(parts), whole)


def test_bits_of_a_prompt_are_those_of_its_tokens_one_by_one(attention: CpuAttention) -> None:
    for scoring in (PLAIN, GEMMA):
        step = make_step([(0, 150)], heads=(9, 3), dims=(64, 64))
        whole = step.attend(scoring, attention)
        single = [c.attend(scoring, attention) for c in chunks_of(step, [*range(151)])]
        assert torch.equal(torch.cat(single), whole)


@pytest.mark.parametrize("batch", [LONG, BATCHES["all kinds"], [(300, 1)] * 3])
def test_bits_depend_neither_on_other_rows_nor_on_threads(
    batch: list[tuple[int, int]], attention: CpuAttention
) -> None:
    step = make_step(batch, heads=(9, 3), dims=(64, 64))
    together = step.attend(GEMMA, attention)
    before = torch.get_num_threads()
    try:
        for num_threads in (2, 3):
            torch.set_num_threads(num_threads)
            assert torch.equal(step.attend(GEMMA, attention), together)
    finally:
        torch.set_num_threads(before)
    first = 0
    for span in step.spans:
        own = slice(first, first + span.length)
        q, k, v = (each[own] for each in (step.q, step.k, step.v))
        alone = replace(step, q=q, k=k, v=v, spans=[span]).attend(GEMMA, attention)
        assert torch.equal(alone, together[own])
        first += span.length


def test_parts_of_one_tensor_are_read_where_they_lie(compiled_kernels: CpuKernels) -> None:
    step = make_step(LONG, heads=(6, 2), dims=(64, 64))
    expected = step.attend(PLAIN, compiled_kernels.attention)
    joined = torch.cat([each.flatten(1) for each in (step.q, step.k, step.v)], dim=1)
    parts = joined.split([6 * 64, 2 * 64, 2 * 64], dim=1)
    q, k, v = (part.unflatten(1, (-1, 64)) for part in parts)
    assert torch.equal(
        replace(step, q=q, k=k, v=v).attend(PLAIN, compiled_kernels.attention), expected
    )
    q, k, v = (each.transpose(0, 1).contiguous().transpose(0, 1) for each in (q, k, v))
    assert torch.equal(
        replace(step, q=q, k=k, v=v).attend(PLAIN, compiled_kernels.attention), expected
    )
    q, k, v = (each.transpose(1, 2).contiguous().transpose(1, 2) for each in (q, k, v))
    assert torch.equal(
        replace(step, q=q, k=k, v=v).attend(PLAIN, compiled_kernels.attention), expected
    )


def test_numbers_that_are_not_finite_stay_in_their_sequence(compiled_kernels: CpuKernels) -> None:
    step = make_step(LONG, heads=(6, 2), dims=(64, 64))
    expected = step.attend(PLAIN, compiled_kernels.attention)
    step.q[0], step.k[-1], step.v[-1] = float("nan"), float("inf"), float("nan")
    found = step.attend(PLAIN, compiled_kernels.attention)
    assert found[0].isnan().all()
    assert found[-1].isnan().all()
    assert torch.equal(found[1:-1], expected[1:-1])


def test_scores_of_any_size_are_weighed(attention: CpuAttention) -> None:
    step = make_step([(0, 100)], heads=(1, 1), dims=(64, 64))
    for factor in (1e-6, 1.0, 30.0, 1e6):
        scaled = replace(step, q=step.q * factor)
        out, expected = scaled.attend(PLAIN, attention), scaled.reference(PLAIN)
        torch.testing.assert_close(out.double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("softcap", [0.01, 1.0, 50.0])
def test_soft_caps_are_exact_where_scores_are_small_and_where_they_are_large(
    softcap: float, attention: CpuAttention
) -> None:
    step = make_step([(0, 100)], heads=(1, 1), dims=(64, 64))
    assert_equals_reference(step, Scoring(0.3, None, softcap), attention)


def test_tensors_that_do_not_fit_the_step_are_refused(compiled_kernels: CpuKernels) -> None:
    attention = compiled_kernels.attention
    step = make_step([(0, 3)])
    metadata = attention.plan(Spans.of(step.spans))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> None:
        attention.attend(q, k, v, step.cache, metadata, PLAIN)

    with pytest.raises(ValueError, match="the step's 3 rows, not 2"):
        attend(step.q[:2], step.k[:2], step.v[:2])
    with pytest.raises(ValueError, match="as many rows"):
        attend(step.q, step.k[:2], step.v)
    with pytest.raises(ValueError, match="one dtype"):
        attend(step.q, step.k.bfloat16(), step.v)
    with pytest.raises(ValueError, match="heads and dims of the cache"):
        attend(step.q, step.k[:, :1], step.v)
    with pytest.raises(ValueError, match="heads and dims of the cache"):
        attend(step.q[..., :8], step.k, step.v)


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([Span(3, 0, [0]), Span(3, 1, [1])], "1 row or more"),
        ([Span(-1, 1, [0])], "begin at 0 or later"),
        ([Span(0, 1, [-1])], "from 0 on"),
    ],
)
def test_spans_without_rows_or_blocks_are_refused(
    spans: list[Span], message: str, compiled_kernels: CpuKernels
) -> None:
    with pytest.raises(ValueError, match=message):
        compiled_kernels.attention.plan(Spans.of(spans))


def test_a_cache_that_is_not_that_of_the_step_is_refused(compiled_kernels: CpuKernels) -> None:
    attention = compiled_kernels.attention
    step = make_step([(0, 3)], 4)
    keys, values = step.cache

    def attend(cache: KvCache, spans: list[Span]) -> None:
        metadata = attention.plan(Spans.of(spans))
        attention.attend(step.q, step.k, step.v, cache, metadata, PLAIN)

    with pytest.raises(ValueError, match="contiguous"):
        attend(KvCache(keys.transpose(0, 1).contiguous().transpose(0, 1), values), step.spans)
    with pytest.raises(ValueError, match="on the CPU"):
        attend(KvCache(keys.to("meta"), values), step.spans)
    with pytest.raises(ValueError, match=f"the cache has {len(keys)}"):
        attend(step.cache, [Span(0, 3, [len(keys)])])
    with pytest.raises(ValueError, match="too few blocks of 4 tokens: blocks of 5 would"):
        attend(step.cache, [Span(2, 3, [0])])


def test_shorter_tables_may_end_in_no_block(compiled_kernels: CpuKernels) -> None:
    attention = compiled_kernels.attention
    step = make_step([(9, 1), (2, 1)], 4)
    spans = Spans.of(step.spans)
    whole = attention.attend(step.q, step.k, step.v, step.cache, attention.plan(spans), PLAIN)
    spans.block_tables[1, len(step.spans[1].block_table) :] = -1
    assert spans.block_tables.min() == -1
    ended = attention.attend(step.q, step.k, step.v, step.cache, attention.plan(spans), PLAIN)
    assert torch.equal(ended, whole)


def test_sixteen_bits_of_the_other_kind_are_left_to_torch(compiled_kernels: CpuKernels) -> None:
    assert not compiled_kernels.attention.supports(torch.float16)
    assert compiled_kernels.attention.supports(torch.bfloat16)
