import pytest
import torch

from loraplex.kernels.lora import LoraSegment, add_lora
from loraplex.kernels.lora_reference import add_lora_reference

IN, OUT = 37, 53
BASE = -1
RANKS = (1, 2, 4, 7, 8, 16, 33, 64, 128)
ROWS = (1, 2, 3, 7, 133)
TOLERANCES = {  # dtype: relative, absolute
    torch.float32: (2e-6, 1e-5),
    torch.bfloat16: (2**-8, 1e-5),  # half a unit in the last place: one rounding, at the end
    torch.float16: (2**-11, 1e-5),
}
ASSIGNMENTS = {  # adapter of each of n rows, in order; -1 is the base model
    "distinct": lambda n: list(range(n)),
    "uniform": lambda n: [row * 4 // n for row in range(n)],
    "zipf": lambda n: sorted(n // (row + 1) for row in range(n)),
    "identical": lambda n: [0] * n,
    "skewed": lambda n: [BASE] * (n // 3) + [0] * (n - n // 3 - 1) + [1],
}


def make_batch(rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, OUT).to(dtype), torch.randn(rows, IN).to(dtype)


def make_segments(assignment: list[int], rank: int, dtype: torch.dtype) -> list[LoraSegment]:
    segments = []
    for adapter in sorted(set(assignment) - {BASE}):
        start = assignment.index(adapter)
        a = torch.randn(rank, IN).to(dtype)
        b = (torch.randn(OUT, rank) / rank).to(dtype)
        end = start + assignment.count(adapter)
        segments.append(LoraSegment(start, end, a, b, scale=0.3 + adapter % 5))
    return segments


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("assignment", ASSIGNMENTS)
@pytest.mark.parametrize("rows", ROWS)
def test_updates_equal_the_reference(rows: int, assignment: str, dtype: torch.dtype) -> None:
    relative, absolute = TOLERANCES[dtype]
    for rank in RANKS:
        torch.manual_seed(rank * rows)
        y, x = make_batch(rows, dtype)
        segments = make_segments(ASSIGNMENTS[assignment](rows), rank, dtype)
        expected = add_lora_reference(y, x, segments)
        add_lora(y, x, segments)
        torch.testing.assert_close(y.double(), expected, rtol=relative, atol=absolute)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_rows_outside_all_segments_keep_their_bits(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    y, x = make_batch(7, dtype)
    y[0, 0], y[6, 0] = -0.0, float("nan")
    before = y.clone()
    add_lora(y, x, make_segments([BASE, BASE, 0, 0, 1, BASE, BASE], 8, dtype))
    bits = torch.int32 if dtype is torch.float32 else torch.int16
    changed = (y.view(bits) != before.view(bits)).any(dim=1).tolist()
    assert changed == [False, False, True, True, True, False, False]


def test_adapters_of_different_ranks_share_a_batch() -> None:
    torch.manual_seed(1)
    y, x = make_batch(len(RANKS), torch.float32)
    one_row_each = [
        make_segments([0], rank, torch.float32)[0]._replace(start=row, end=row + 1)
        for row, rank in enumerate(RANKS)
    ]
    expected = add_lora_reference(y, x, one_row_each)
    add_lora(y, x, one_row_each)
    torch.testing.assert_close(y.double(), expected, rtol=2e-6, atol=1e-5)


def test_a_row_that_is_not_finite_stays_alone() -> None:
    torch.manual_seed(2)
    y, x = make_batch(3, torch.float32)
    x[1] = float("inf")
    add_lora(y, x, make_segments([0, 0, 0], 8, torch.float32))
    assert y.isfinite().all(dim=1).tolist() == [True, False, True]


def test_equal_batches_give_equal_bits() -> None:
    torch.manual_seed(3)
    y, x = make_batch(133, torch.float32)
    segments = make_segments(ASSIGNMENTS["zipf"](133), 16, torch.float32)
    first, second = y.clone(), y.clone()
    add_lora(first, x, segments)
    add_lora(second, x, segments)
    assert torch.equal(first, second)
