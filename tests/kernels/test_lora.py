import sys

import pytest
import torch
from tests.kernels.lora_cases import (
    ALL_RANKS,
    ASSIGNMENTS,
    BASE,
    ROWS,
    TOLERANCES,
    make_batch,
    make_segments,
)

from loraplex.kernels.lora import add_lora
from loraplex.kernels.lora_reference import add_lora_reference


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("assignment", ASSIGNMENTS)
@pytest.mark.parametrize("rows", ROWS)
def test_updates_equal_the_reference(rows: int, assignment: str, dtype: torch.dtype) -> None:
    relative, absolute = TOLERANCES[dtype]
    for rank in ALL_RANKS:
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
    y, x = make_batch(len(ALL_RANKS), torch.float32)
    one_row_each = [
        make_segments([0], rank, torch.float32)[0]._replace(start=row, end=row + 1)
        for row, rank in enumerate(ALL_RANKS)
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


def test_a_cpu_needs_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "loraplex.kernels.lora_triton", None)
    torch.manual_seed(4)
    y, x = make_batch(2, torch.float32)
    before = y.clone()
    add_lora(y, x, make_segments([0, 1], 8, torch.float32))
    assert (y != before).all()
