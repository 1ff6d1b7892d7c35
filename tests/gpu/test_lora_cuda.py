"""The kernels as a GPU runs them."""

import pytest
import torch
from tests.kernels.lora_cases import (
    BASE,
    RANKS,
    ROWS,
    TOLERANCES,
    make_batch,
    make_segment,
    make_segments,
    mixed_rank_batches,
    unlike_assignments,
)

from loraplex.kernels.lora import LoraSegment, add_lora
from loraplex.kernels.lora_reference import add_lora_reference

pytestmark = pytest.mark.gpu


def on_gpu(segments: list[LoraSegment]) -> list[LoraSegment]:
    return [segment._replace(a=segment.a.cuda(), b=segment.b.cuda()) for segment in segments]


def assert_equals_reference(y: torch.Tensor, x: torch.Tensor, segments: list[LoraSegment]) -> None:
    relative, absolute = TOLERANCES[y.dtype]
    result = y.cuda()
    add_lora(result, x.cuda(), on_gpu(segments))
    expected = add_lora_reference(y, x, segments)
    torch.testing.assert_close(result.cpu().double(), expected, rtol=relative, atol=absolute)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_updates_equal_the_reference(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    for assignment in unlike_assignments(rows):
        for y, x, segments in mixed_rank_batches(assignment, dtype):
            assert_equals_reference(y, x, segments)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("rank", [*RANKS, 256])
@pytest.mark.parametrize("widths", [(4096, 11008), (11008, 4096), (2100, 301)], ids=str)
@pytest.mark.parametrize("rows", [1, 70])
def test_widths_of_real_models_equal_the_reference(
    rows: int, widths: tuple[int, int], rank: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(rank)
    y, x = make_batch(rows, dtype, widths=widths)
    assert_equals_reference(y, x, [make_segment(0, rows, rank, dtype, widths=widths)])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_rows_outside_all_segments_keep_their_bits(dtype: torch.dtype) -> None:
    y, x = make_batch(7, dtype)
    y[0, 0], y[5, 0], y[6, 0] = -0.0, -0.0, float("nan")  # -0.0 + 0.0 is 0.0
    result = y.cuda()
    add_lora(result, x.cuda(), on_gpu(make_segments([BASE, BASE, 0, 0, 1, BASE, BASE], 8, dtype)))
    bits = torch.int32 if dtype is torch.float32 else torch.int16
    changed = (y.view(bits) != result.cpu().view(bits)).any(dim=1).tolist()
    assert changed == [False, False, True, True, True, False, False]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_equal_batches_give_equal_bits(dtype: torch.dtype) -> None:
    y, x = (tensor.cuda() for tensor in make_batch(133, dtype, widths=(4096, 4096)))
    segments = on_gpu([make_segment(0, 133, 64, dtype, widths=(4096, 4096))])
    first, second = y.clone(), y.clone()
    add_lora(first, x, segments)
    add_lora(second, x, segments)
    assert torch.equal(first, second)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_a_row_has_the_same_bits_whoever_shares_its_batch(dtype: torch.dtype) -> None:
    widths = (4096, 4096)
    y, x = (tensor.cuda() for tensor in make_batch(9, dtype, widths=widths))
    own, other = on_gpu([make_segment(0, 1, rank, dtype, widths=widths) for rank in (7, 128)])
    alone, shared = y.clone(), y.clone()
    add_lora(alone, x, [own])
    add_lora(shared, x, [own, other._replace(start=1, end=9)])
    assert torch.equal(alone[0], shared[0])


def test_rows_may_lie_further_apart_than_32_bits_count() -> None:
    stride = 2**31 + 16
    storage = torch.empty(stride + 64, dtype=torch.float16, device="cuda")
    x = storage.as_strided((2, 37), (stride, 1))
    y, values = make_batch(2, torch.float16)
    x.copy_(values)
    segments = [make_segment(0, 2, 8, torch.float16)]
    result = y.cuda()
    add_lora(result, x, on_gpu(segments))
    expected = add_lora_reference(y, values, segments)
    torch.testing.assert_close(result.cpu().double(), expected, rtol=2**-11, atol=1e-5)
