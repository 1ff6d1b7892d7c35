"""Attention of GPUs, run on a CPU by Triton's interpreter."""

from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from tests.kernels.attention_cases import BATCHES, CPU, KEY_DIM, PLAIN, TOLERANCES, Step, make_step
from torch import Tensor

from loraplex.kernels import attention_paged
from loraplex.kernels.attention import Scoring, Span, Spans, Window
from loraplex.kernels.attention_paged import (
    TritonAttention,
    VarlenAttention,
    paged_attention,
    varlen_attn_of,
)
from loraplex.kernels.paged_step import TILE_ROWS, PagedLayout

# numpy's, of rows that only fill a tile
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")

LONG = [(255, 1), (1500, 1), (0, 1), (4200, 1)]  # in 1, 6, 1 and 16 splits


def by_triton(step: Step, scoring: Scoring = PLAIN) -> Tensor:
    return step.attend(scoring, TritonAttention(PagedLayout(step.layout.block_size, CPU)))


def assert_equals_reference(step: Step, scoring: Scoring = PLAIN) -> None:
    out, tolerance = by_triton(step, scoring), TOLERANCES[step.q.dtype]
    expected = step.reference(scoring)
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("window", "block_size", "softcap"),
    [(None, 16, None), (1, 1, 1.5), (4, 7, None), (64, 16, 1.5)],
)
@pytest.mark.parametrize("batch", ["decodes of many lengths", "prompts", "all kinds"])
def test_attention_equals_the_reference(
    batch: str, window: Window, block_size: int, softcap: float | None
) -> None:
    step = make_step(BATCHES[batch], block_size, heads=(3, 1))
    assert_equals_reference(step, Scoring(0.3, window, softcap))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_numbers_of_16_bits_are_summed_in_32(dtype: torch.dtype) -> None:
    assert_equals_reference(make_step(BATCHES["all kinds"], dtype=dtype))


@pytest.mark.parametrize(
    ("heads", "dims"),
    [
        ((1, 1), (16, 16)),
        ((7, 1), (64, 64)),
        ((6, 3), (80, 80)),
        ((4, 2), (24, 8)),
        ((2, 2), (128, 96)),
        ((2, 1), (256, 256)),
        ((1, 1), (300, 300)),
        ((71, 1), (16, 16)),
    ],
    ids=str,
)
def test_heads_of_any_number_and_width_share_the_keys_of_their_group(
    heads: tuple[int, int], dims: tuple[int, int]
) -> None:
    assert_equals_reference(make_step([(70, 1), (3, 9)], heads=heads, dims=dims), Scoring(0.1))


@pytest.mark.parametrize("window", [None, 700])
def test_keys_of_long_sequences_are_shared_between_programs(window: Window) -> None:
    assert_equals_reference(make_step(LONG, heads=(2, 1)), Scoring(0.3, window))


def test_prompts_take_several_tiles_and_begin_anywhere() -> None:
    batch = [(0, 2 * TILE_ROWS + 3), (50, TILE_ROWS), (1, TILE_ROWS + 1)]
    assert_equals_reference(make_step(batch, heads=(3, 1)), Scoring(0.3, 40))


def test_queries_keys_and_values_may_be_parts_of_one_tensor() -> None:
    step = make_step([(20, 1), (3, 2)])
    expected = by_triton(step)
    joined = torch.cat([step.q, step.k, step.v], dim=1)
    parts = joined.split([step.q.shape[1], step.k.shape[1], step.v.shape[1]], dim=1)
    assert torch.equal(by_triton(replace(step, q=parts[0], k=parts[1], v=parts[2])), expected)
    by_head, backwards = (
        [t.transpose(*dims).contiguous().transpose(*dims) for t in (step.q, step.k, step.v)]
        for dims in ((0, 1), (1, 2))
    )
    for q, k, v in (by_head, backwards):
        assert torch.equal(by_triton(replace(step, q=q, k=k, v=v)), expected)


def test_a_row_has_the_same_bits_whoever_shares_its_step() -> None:
    step = make_step([(700, 1), (90, 1), (20, 70)], heads=(2, 1))
    together = by_triton(step)
    for index, rows in enumerate((slice(0, 1), slice(1, 2), slice(2, 72))):
        alone = replace(
            step, q=step.q[rows], k=step.k[rows], v=step.v[rows], spans=[step.spans[index]]
        )
        assert torch.equal(by_triton(alone), together[rows])


@pytest.mark.parametrize("window", [None, 20])
def test_a_prompt_may_be_cut_anywhere(window: Window) -> None:
    whole = make_step([(0, 90)], heads=(2, 1))
    scoring = Scoring(0.3, window)
    at_once = by_triton(whole, scoring)
    (span,) = whole.spans
    for start, end in ((0, 11), (11, 77), (77, 90)):
        rows = slice(start, end)
        chunk = replace(
            whole,
            q=whole.q[rows],
            k=whole.k[rows],
            v=whole.v[rows],
            spans=[Span(start, end - start, span.block_table)],
        )
        # Not the same bits, as on a GPU: numpy's products depend on a row's place in its matrix.
        torch.testing.assert_close(by_triton(chunk, scoring), at_once[rows], rtol=1e-5, atol=1e-6)


def test_slots_of_other_sequences_may_hold_anything() -> None:
    step = make_step(BATCHES["all kinds"], heads=(2, 1))
    expected = by_triton(step)
    own = {
        span.block_table[position // 16] * 16 + position % 16
        for span in step.spans
        for position in range(span.start + span.length)
    }
    others = sorted(set(range(step.layout.null_slot + 16)) - own)
    step.cache.keys.flatten(0, 1)[others] = float("nan")
    step.cache.values.flatten(0, 1)[others] = float("inf")
    assert torch.equal(by_triton(step), expected)


def test_a_step_writes_its_own_slots_only() -> None:
    step = make_step(BATCHES["all kinds"])
    before = step.cache.keys.clone()
    by_triton(step)
    written = {
        (span.block_table[position // 16], position % 16)
        for span in step.spans
        for position in range(span.start, span.start + span.length)
    }
    changed = (step.cache.keys != before).flatten(2).any(dim=2).nonzero().tolist()
    assert {tuple(slot) for slot in changed} == written


def test_buffers_hold_one_step_of_decodes_after_the_other() -> None:
    buffers = PagedLayout(16, CPU).buffers(max_rows=4, max_keys=400)
    tensors = [tensor for tensor in vars_of(buffers.step) if isinstance(tensor, Tensor)]
    attention = TritonAttention(buffers.layout)
    for batch in ([(5, 1), (399, 1)], [(7, 1), (64, 1), (15, 1), (0, 1)], [(0, 1)]):
        step = make_step(batch, heads=(2, 1))
        expected = by_triton(step)
        step.cache.keys[-1] = step.cache.values[-1] = float("nan")
        rows, unused = len(batch), 4 - len(batch)
        padded = [
            torch.nn.functional.pad(t, (0, 0, 0, 0, 0, unused)) for t in (step.q, step.k, step.v)
        ]
        buffers.fill(Spans.of(step.spans))
        out = attention.attend(*padded, step.cache, buffers.step, PLAIN)
        assert torch.equal(out[:rows], expected)
        assert not out[rows:].any()
    assert all(a is b for a, b in zip(tensors, vars_of(buffers.step), strict=False))


def vars_of(step: Any) -> list[Any]:
    return [getattr(step, name) for name in step.__slots__]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([(0, 1)] * 4, "4 spans of up to 1 rows and 1 keys do not fit into buffers for 3 decodes"),
        ([(0, 2)], "1 spans of up to 2 rows"),
        ([(40, 1)], "up to 1 rows and 41 keys do not fit into buffers for 3 decodes of 40 keys"),
    ],
)
def test_a_step_that_buffers_have_no_room_for_is_refused(
    batch: list[tuple[int, int]], message: str
) -> None:
    buffers = PagedLayout(16, CPU).buffers(max_rows=3, max_keys=40)
    with pytest.raises(ValueError, match=message):
        buffers.fill(Spans.of(make_step(batch).spans))


def test_a_layer_beyond_the_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="values of 16 and 129 heads for a KV head are more than"):
        by_triton(make_step([(0, 1)], heads=(129, 1)))
    with pytest.raises(ValueError, match="keys of 513"):
        by_triton(make_step([(0, 1)], heads=(1, 1), dims=(513, KEY_DIM)))


def test_a_cache_that_kernels_would_read_wrong_is_refused() -> None:
    step = make_step([(0, 1)])
    strided = step.cache._replace(keys=step.cache.keys.transpose(1, 2).contiguous().transpose(1, 2))
    with pytest.raises(ValueError, match="keys and values of the cache must be contiguous"):
        by_triton(replace(step, cache=strided))


def varlen_attn(*tensors_and_sizes: Any, **options: Any) -> None:
    """What torch documents of its own, by torch's other attention."""
    out, query, key, value, cu_seq_q, cu_seq_k, max_q, max_k = tensors_and_sizes
    assert (cu_seq_k, options["enable_gqa"], options["num_splits"]) == (None, True, 1)
    left, right = options["window_size"]
    spans = pairwise(cu_seq_q.tolist())
    lengths = options["seqused_k"].tolist()
    for (start, end), keys, table in zip(spans, lengths, options["block_table"], strict=True):
        assert end - start <= max_q
        assert keys <= max_k
        seen_keys, seen_values = (t[table].flatten(0, 1)[:keys] for t in (key, value))
        ahead = torch.arange(keys) - torch.arange(keys - end + start, keys)[:, None]
        mask = (ahead <= right) & (ahead >= -left) if left >= 0 else ahead <= right
        out[start:end] = torch.nn.functional.scaled_dot_product_attention(
            query[start:end].transpose(0, 1),
            seen_keys.transpose(0, 1),
            seen_values.transpose(0, 1),
            attn_mask=mask,
            scale=options["scale"],
            enable_gqa=True,
        ).transpose(0, 1)


@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize("batch", ["whole prompt", "all kinds"])
def test_what_torch_is_asked_for_equals_the_reference(batch: str, window: Window) -> None:
    step, scoring = make_step(BATCHES[batch]), Scoring(0.3, window)
    out = step.attend(scoring, VarlenAttention(PagedLayout(16, CPU), varlen_attn))
    torch.testing.assert_close(out.double(), step.reference(scoring), rtol=1e-5, atol=1e-5)


class Form(NamedTuple):
    window: Window = None
    key_dim: int = 128
    value_dim: int = 128
    softcap: float | None = None
    group: int = 1


@pytest.mark.parametrize(
    ("forms", "dtype", "expected"),
    [
        ([Form(), Form(window=512)], torch.bfloat16, VarlenAttention),
        ([Form(key_dim=256, value_dim=256)], torch.float16, VarlenAttention),
        ([Form()], torch.float32, TritonAttention),
        ([Form(), Form(softcap=50.0)], torch.bfloat16, TritonAttention),
        ([Form(key_dim=192)], torch.bfloat16, TritonAttention),
        ([Form(key_dim=264, value_dim=264)], torch.bfloat16, TritonAttention),
        ([Form(key_dim=84, value_dim=84)], torch.bfloat16, TritonAttention),
        ([Form(), Form(value_dim=513)], torch.float32, type(None)),
        ([Form(group=128)], torch.float32, TritonAttention),
        ([Form(), Form(group=129)], torch.float32, type(None)),
        ([Form(group=129)], torch.bfloat16, type(None)),
    ],
)
def test_torch_computes_what_its_kernel_can_and_triton_the_rest(
    forms: list[Form], dtype: torch.dtype, expected: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_paged, "varlen_attn_of", lambda _: varlen_attn)
    assert type(paged_attention(PagedLayout(16, CPU), forms, dtype)) is expected


def test_torch_has_no_kernel_without_its_package_or_card(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = {"cuda:0": (9, 0), "cuda:1": (8, 0)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda card: cards[str(card)])
    assert varlen_attn_of(torch.device("cuda:0")) is None
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    assert varlen_attn_of(torch.device("cuda:1")) is None
