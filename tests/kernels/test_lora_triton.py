"""The GPU kernels, run on a CPU by Triton's interpreter.

It takes about 10 ms for each program, so adapters of different ranks share a batch: each
assignment of each number of rows meets each rank once or more.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.kernels.lora_cases import (
    BASE,
    IN,
    OUT,
    ROWS,
    TOLERANCES,
    make_batch,
    make_segment,
    make_segments,
    mixed_rank_batches,
    one_module,
    unlike_assignments,
)

from loraplex.kernels.lora import LoraSegment, add_lora
from loraplex.kernels.lora_reference import add_lora_reference
from loraplex.kernels.segments import (
    FEW_ROWS,
    MANY_ROWS,
    ModuleSegments,
    TableRows,
    lora_table,
    step_segments,
)

DTYPES = (torch.float32, torch.float16)


def table_rows(segment: LoraSegment, dtype: torch.dtype) -> TableRows:
    shape = (segment.b.shape[0], segment.a.shape[1])
    table = lora_table([segment], [shape], dtype=dtype, device=torch.device("cpu"))
    return TableRows(segment.start, segment.end, table)


def located(segments: list[LoraSegment], dtype: torch.dtype = torch.float32) -> ModuleSegments:
    step = step_segments([table_rows(segment, dtype) for segment in segments])
    widths = segments[0].a.shape[1], segments[0].b.shape[0]
    at = step.at(one_module(widths=widths))
    assert at is not None
    return at


def assert_equals_reference(
    y: torch.Tensor, x: torch.Tensor, segments: list[LoraSegment], chunk_rows: int | None = None
) -> None:
    relative, absolute = TOLERANCES[y.dtype]
    expected = add_lora_reference(y, x, segments)
    at = located(segments, y.dtype)
    assert chunk_rows in {None, at.step.chunk_rows}
    add_lora(y, x, at)
    torch.testing.assert_close(y.double(), expected, rtol=relative, atol=absolute)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_updates_equal_the_reference(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    for assignment in unlike_assignments(rows):
        for y, x, segments in mixed_rank_batches(assignment, dtype):
            assert_equals_reference(y, x, segments)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "chunk_rows"), [(3, FEW_ROWS), (70, MANY_ROWS)])
def test_widths_need_not_be_multiples_of_a_block(
    rows: int, chunk_rows: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    widths = (2100, 301)  # several splits and several blocks in both schedules
    y, x = make_batch(rows, dtype, widths=widths)
    segments = [make_segment(0, rows, 7, dtype, widths=widths)]
    assert_equals_reference(y, x, segments, chunk_rows)


@pytest.mark.parametrize("rank", [129, 200, 512])
def test_ranks_above_128_take_several_blocks(rank: int) -> None:
    torch.manual_seed(rank)
    y, x = make_batch(2, torch.float32)
    assert_equals_reference(y, x, [make_segment(0, 2, rank, torch.float32)])


def test_widths_of_one_are_widths() -> None:
    torch.manual_seed(1)
    y, x = make_batch(2, torch.float32, widths=(1, 1))
    assert_equals_reference(y, x, [make_segment(0, 2, 3, torch.float32, widths=(1, 1))])


def test_bfloat16_is_rounded_once() -> None:
    torch.manual_seed(2)
    y, x = make_batch(20, torch.bfloat16)
    segments = [make_segment(0, 1, 7, torch.bfloat16), make_segment(2, 20, 33, torch.bfloat16)]
    expected = add_lora_reference(y, x, segments)
    add_lora(y, x, located(segments, torch.bfloat16))
    # A whole unit in the last place, since the interpreter cuts off where a GPU rounds.
    torch.testing.assert_close(y.double(), expected, rtol=2**-7, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_outside_all_segments_keep_their_bits(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    y, x = make_batch(7, dtype)
    y[0, 0], y[5, 0], y[6, 0] = -0.0, -0.0, float("nan")  # -0.0 + 0.0 is 0.0
    before = y.clone()
    add_lora(y, x, located(make_segments([BASE, BASE, 0, 0, 1, BASE, BASE], 8, dtype), dtype))
    bits = torch.int32 if dtype is torch.float32 else torch.int16
    changed = (y.view(bits) != before.view(bits)).any(dim=1).tolist()
    assert changed == [False, False, True, True, True, False, False]


def test_equal_batches_give_equal_bits() -> None:
    torch.manual_seed(4)
    y, x = make_batch(21, torch.float32, widths=(1100, OUT))
    segments = located([make_segment(0, 21, 16, torch.float32, widths=(1100, OUT))])
    first, second = y.clone(), y.clone()
    add_lora(first, x, segments)
    add_lora(second, x, segments)
    assert torch.equal(first, second)


def test_a_row_has_the_same_bits_whoever_shares_its_batch() -> None:
    torch.manual_seed(5)
    y, x = make_batch(9, torch.float32, widths=(1100, OUT))
    own, other = (make_segment(0, 1, r, torch.float32, widths=(1100, OUT)) for r in (7, 128))
    alone, shared = y.clone(), y.clone()
    add_lora(alone, x, located([own]))
    add_lora(shared, x, located([own, other._replace(start=1, end=9)]))
    assert torch.equal(alone[0], shared[0])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, of inf * 0
def test_a_row_that_is_not_finite_stays_alone() -> None:
    torch.manual_seed(6)
    y, x = make_batch(3, torch.float32)
    x[1] = float("inf")
    add_lora(y, x, located(make_segments([0, 0, 0], 8, torch.float32)))
    assert y.isfinite().all(dim=1).tolist() == [True, False, True]


def test_a_module_that_no_adapter_targets_has_no_segments() -> None:
    rank_0 = LoraSegment(0, 1, torch.zeros(0, IN), torch.zeros(OUT, 0), 1.0)
    assert step_segments([table_rows(rank_0, torch.float32)]).at(one_module()) is None


def test_an_adapter_that_leaves_the_module_alone_changes_nothing() -> None:
    torch.manual_seed(7)
    y, x = make_batch(2, torch.float32)
    before = y.clone()
    rank_0 = LoraSegment(0, 1, torch.zeros(0, IN), torch.zeros(OUT, 0), 1.0)
    add_lora(y, x, located([rank_0, make_segment(1, 2, 4, torch.float32)]))
    assert (y != before).any(dim=1).tolist() == [False, True]


def test_a_chunk_without_rows_does_nothing() -> None:
    torch.manual_seed(8)
    y, x = make_batch(2, torch.float32)
    segments = [make_segment(0, 2, 4, torch.float32)]
    expected = add_lora_reference(y, x, segments)
    at = located(segments)
    padding = torch.zeros(2, 3, dtype=torch.int64)  # as a captured graph has it
    chunks = torch.cat([at.step.chunks, padding])
    add_lora(y, x, replace(at, step=replace(at.step, chunks=chunks)))
    torch.testing.assert_close(y.double(), expected, rtol=2e-6, atol=1e-5)


def test_a_table_has_an_entry_for_each_module() -> None:
    torch.manual_seed(9)
    widths = [(IN, OUT), (5, 6), (OUT, IN)]
    pairs = [
        make_segment(0, 2, r, torch.float32, widths=w)
        for r, w in zip((3, 1, 9), widths, strict=True)
    ]
    shapes = [(out_width, in_width) for in_width, out_width in widths]
    table = lora_table(pairs, shapes, dtype=torch.float32, device=torch.device("cpu"))
    step = step_segments([TableRows(0, 2, table)])
    for module, pair in enumerate(pairs):
        y, x = make_batch(2, torch.float32, widths=widths[module])
        expected = add_lora_reference(y, x, [pair])
        add_lora(y, x, step.at(one_module(module, widths=widths[module])))
        torch.testing.assert_close(y.double(), expected, rtol=2e-6, atol=1e-5)


def test_y_may_be_columns_of_a_wider_tensor_and_x_may_be_transposed() -> None:
    torch.manual_seed(10)
    y, x = make_batch(3, torch.float32)
    segments = [make_segment(1, 3, 4, torch.float32)]
    expected = add_lora_reference(y, x, segments)
    wide = torch.zeros(3, OUT + 9)
    columns = wide[:, 4 : OUT + 4]
    columns.copy_(y)
    add_lora(columns, x.T.contiguous().T, located(segments))
    torch.testing.assert_close(columns.double(), expected, rtol=2e-6, atol=1e-5)
    assert not wide[:, :4].any()
    assert not wide[:, OUT + 4 :].any()


def test_what_does_not_fit_together_is_refused() -> None:
    y, x = make_batch(2, torch.float32)
    at = located([make_segment(0, 2, 4, torch.float32)])
    with pytest.raises(ValueError, match=r"y is torch\.float16, x torch\.float32"):
        add_lora(y.half(), x, at)
    with pytest.raises(ValueError, match=r"weights torch\.float32"):
        add_lora(y.half(), x.half(), at)
    with pytest.raises(ValueError, match="y has 1 rows, x 1, segments end at 2"):
        add_lora(y[:1], x[:1], at)
    with pytest.raises(ValueError, match="must be adjacent, not 2 apart"):
        add_lora(y.T.contiguous().T, x, at)


def test_weights_that_a_kernel_would_read_wrong_are_refused() -> None:
    pair = make_segment(0, 2, 4, torch.float32)
    cases = [
        (pair._replace(a=pair.a.half()), r"a is \(4, 37\) torch.float16"),
        (pair._replace(a=pair.a[:, 1:].contiguous()), r"a is \(4, 36\)"),
        (pair._replace(b=pair.b[:, 1:].contiguous()), r"b is \(53, 3\)"),
        (pair._replace(b=pair.b.T.contiguous().T), "b must be contiguous"),
        (pair._replace(a=torch.zeros(1 + 4 * IN)[1:].view(4, IN)), "multiple of 16 bytes"),
    ]
    for wrong, message in cases:
        with pytest.raises(ValueError, match=message):
            lora_table([wrong], [(OUT, IN)], dtype=torch.float32, device=torch.device("cpu"))


def test_the_kernels_compile_for_gpus_and_fit_into_their_shared_memory() -> None:
    script = Path(__file__).parent / "compile_for_gpus.py"
    env = {**os.environ, "TRITON_INTERPRET": "0"}
    subprocess.run([sys.executable, script], check=True, env=env)
