"""The compiled kernel of CPUs, against the reference."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from tests.kernels.lora_cases import (
    ALL_RANKS,
    ASSIGNMENTS,
    IN,
    OUT,
    ROWS,
    TOLERANCES,
    make_batch,
    make_segment,
    make_segments,
    mixed_rank_batches,
    one_module,
)

from loraplex.kernels.cpu_kernels import CpuKernels
from loraplex.kernels.lora import LoraSegment, add_lora
from loraplex.kernels.lora_cpu import CpuLora, CpuModuleSegments, CpuSegments, transposed_in_memory
from loraplex.kernels.lora_reference import add_lora_reference
from loraplex.kernels.segments import LoraTable, Slices, TableRows, lora_table

DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture
def kernel(any_kernels: CpuKernels) -> CpuLora:
    return any_kernels.lora


def located(
    kernel: CpuLora, segments: Sequence[LoraSegment], widths: tuple[int, int] = (IN, OUT)
) -> CpuModuleSegments:
    in_width, out_width = widths
    rows = []
    for start, end, a, b, scale in segments:
        pair = LoraSegment(start, end, a, b.T.contiguous().T, scale)
        table = lora_table(
            [pair],
            [(out_width, in_width)],
            dtype=a.dtype,
            device=a.device,
            b_is_transposed=True,
        )
        rows.append(TableRows(start, end, table))
    module = CpuSegments.of(rows, kernel).at(one_module(widths=widths))
    assert module is not None
    return module


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("assignment", ASSIGNMENTS)
@pytest.mark.parametrize("rows", ROWS)
def test_updates_equal_the_reference(
    kernel: CpuLora, rows: int, assignment: str, dtype: torch.dtype
) -> None:
    relative, absolute = TOLERANCES[dtype]
    torch.manual_seed(rows)
    for y, x, segments in mixed_rank_batches(ASSIGNMENTS[assignment](rows), dtype, ALL_RANKS):
        expected = add_lora_reference(y, x, segments)
        add_lora(y, x, located(kernel, segments))
        torch.testing.assert_close(y.double(), expected, rtol=relative, atol=absolute)


@pytest.mark.parametrize("widths", [(1, 1), (8, 7), (257, 519), (576, 1536)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_width_equals_the_reference(
    kernel: CpuLora, widths: tuple[int, int], dtype: torch.dtype
) -> None:
    relative, absolute = TOLERANCES[dtype]
    torch.manual_seed(7)
    y, x = make_batch(3, dtype, widths=widths)
    segments = [
        LoraSegment(
            row,
            row + 1,
            torch.randn(rank, widths[0]).to(dtype),
            (torch.randn(widths[1], rank) / rank).to(dtype),
            0.7,
        )
        for row, rank in enumerate((1, 5, 64))
    ]
    expected = add_lora_reference(y, x, segments)
    add_lora(y, x, located(kernel, segments, widths))
    torch.testing.assert_close(y.double(), expected, rtol=relative, atol=2 * absolute)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 8, 9, 34])
def test_a_row_has_the_same_bits_alone_and_in_any_batch_on_any_number_of_threads(
    kernel: CpuLora, num_rows: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(num_rows)
    widths = (37, 117)  # parts of vectors, panels and tiles
    y, x = make_batch(num_rows + 3, dtype, widths=widths)
    others = [make_segment(row, row + 1, 7 * row + 1, dtype, widths=widths) for row in (0, 1, 2)]
    own = make_segment(3, 3 + num_rows, 33, dtype, widths=widths)
    together, alone = y.clone(), y.clone()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    add_lora(together, x, located(kernel, [*others, own], widths))
    torch.set_num_threads(1)
    for segment in (*others, own):
        one = located(kernel, [segment._replace(start=0, end=1)], widths)
        for row in range(segment.start, segment.end):
            add_lora(alone[row : row + 1], x[row : row + 1], one)
    torch.set_num_threads(num_threads)
    assert torch.equal(together, alone)


WIDTHS = (53, 16, 24)
"""Of modules that see one input."""


class Affine(NamedTuple):
    gain: torch.Tensor | None = None
    offset: torch.Tensor | None = None


def table_of(
    ranks: tuple[int, ...], dtype: torch.dtype, affines: tuple[Affine | None, ...] = ()
) -> LoraTable:
    pairs = [
        LoraSegment(
            0,
            0,
            torch.randn(rank, IN).to(dtype),
            transposed_in_memory((torch.randn(width, rank) / max(rank, 1)).to(dtype)),
            0.7,
        )
        for rank, width in zip(ranks, WIDTHS, strict=True)
    ]
    return lora_table(
        pairs,
        [(width, IN) for width in WIDTHS],
        dtype=dtype,
        device=torch.device("cpu"),
        b_is_transposed=True,
        affines=affines,
    )


def expected_of(
    y: torch.Tensor, x: torch.Tensor, rows: list[TableRows], order: tuple[int, ...]
) -> torch.Tensor:
    """By the reference, column after column, with gains and offsets in float64."""
    result, first = y.double(), 0
    for module in order:
        columns = slice(first, first + WIDTHS[module])
        first += WIDTHS[module]
        for start, end, table in rows:
            own = result[start:end, columns]
            pair = table.pairs[module]._replace(start=0, end=end - start)
            own.copy_(add_lora_reference(own, x[start:end], [pair]))
            affine = table.affines[module] if table.affines else None
            if affine is not None and affine.gain is not None:
                own *= affine.gain
            if affine is not None and affine.offset is not None:
                own += affine.offset
    return result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_rows", [1, 3, 8, 40])
def test_modules_that_share_an_input_each_get_their_columns_ranks_gains_and_offsets(
    kernel: CpuLora, num_rows: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(num_rows)
    gain, offset = torch.rand(WIDTHS[1]) + 0.5, torch.randn(WIDTHS[1])
    rows = [
        TableRows(1, 2, table_of((8, 0, 5), dtype)),
        TableRows(2, 3, table_of((0, 0, 64), dtype)),
        TableRows(3, 4, table_of((0, 0, 0), dtype, (None, Affine(offset=offset), None))),
        TableRows(4, 4 + num_rows, table_of((3, 9, 0), dtype, (None, Affine(gain, offset), None))),
        TableRows(
            4 + num_rows, 5 + num_rows, table_of((3, 9, 1), dtype, (None, Affine(gain), None))
        ),
    ]
    order = (2, 0, 1)
    slices = Slices.of(order, [WIDTHS[module] for module in order], IN)
    y, x = make_batch(5 + num_rows, dtype, widths=(IN, slices.width + 5))
    before = y.clone()
    expected = expected_of(y[:, : slices.width], x, rows, order)
    step = CpuSegments.of(rows, kernel)
    add_lora(y, x, step.at(slices))
    relative, absolute = TOLERANCES[dtype]
    torch.testing.assert_close(
        y[:, : slices.width].double(), expected, rtol=relative, atol=2 * absolute
    )
    assert torch.equal(y[0], before[0])
    assert torch.equal(y[:, slices.width :], before[:, slices.width :])
    middle, first = WIDTHS[2], WIDTHS[2] + WIDTHS[0]
    assert torch.equal(y[1, first : slices.width], before[1, first : slices.width])
    assert torch.equal(y[2, middle : slices.width], before[2, middle : slices.width])


def test_modules_that_no_adapter_touches_have_no_segments(kernel: CpuLora) -> None:
    step = CpuSegments.of([TableRows(0, 1, table_of((0, 4, 0), torch.float32))], kernel)
    assert step.at(Slices.of([0, 2], [WIDTHS[0], WIDTHS[2]], IN)) is None
    assert step.at(Slices.of([0, 1], [WIDTHS[0], WIDTHS[1]], IN)) is not None
    with pytest.raises(ValueError, match=r"module 1 is \(16, 37\), not \(17, 37\)"):
        step.at(Slices.of([1], [17], IN))


def test_updates_of_many_rows_and_large_ranks_on_two_threads_equal_the_reference(
    kernel: CpuLora,
) -> None:
    torch.manual_seed(5)
    y, x = make_batch(200, torch.float32, widths=(130, 200))
    ranks = ((0, 1, 512), (1, 70, 128), (70, 200, 16))
    segments = [
        make_segment(start, end, rank, torch.float32, widths=(130, 200))
        for start, end, rank in ranks
    ]
    expected = add_lora_reference(y, x, segments)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    add_lora(y, x, located(kernel, segments, (130, 200)))
    torch.set_num_threads(num_threads)
    torch.testing.assert_close(y.double(), expected, rtol=2e-6, atol=2e-5)


def test_rows_outside_all_segments_keep_their_bits(kernel: CpuLora) -> None:
    y, x = make_batch(4, torch.bfloat16)
    before = y.clone()
    (segment,) = make_segments([0], 8, torch.bfloat16)
    add_lora(y, x, located(kernel, [segment._replace(start=2, end=3)]))
    assert torch.equal(y[[0, 1, 3]], before[[0, 1, 3]])
    assert not torch.equal(y[2], before[2])


def test_numbers_that_are_not_finite_stay_in_their_row(kernel: CpuLora) -> None:
    for dtype in DTYPES:
        y, x = make_batch(2, dtype)
        x[0, 3] = float("nan")
        add_lora(y, x, located(kernel, make_segments([0, 0], 7, dtype)))
        assert y[0].isnan().all()
        assert y[1].isfinite().all()


def test_a_module_that_an_adapter_leaves_alone_keeps_its_bits(kernel: CpuLora) -> None:
    y, x = torch.full((2, OUT), -0.0), torch.randn(2, IN)
    (pair,) = make_segments([0], 8, torch.float32)
    shape = [(OUT, IN)]
    given = {"dtype": torch.float32, "device": torch.device("cpu"), "b_is_transposed": True}
    there = lora_table([pair._replace(b=pair.b.T.contiguous().T)], shape, **given)
    rows = [TableRows(0, 1, lora_table([None], shape, **given)), TableRows(1, 2, there)]
    module = CpuSegments.of(rows, kernel).at(one_module())
    assert module is not None
    add_lora(y, x, module)
    assert torch.signbit(y[0]).all()
    assert y[1].abs().sum() > 0


def test_what_would_be_read_or_written_wrong_is_refused(kernel: CpuLora) -> None:
    y, x = make_batch(3, torch.float32)
    segments = located(kernel, make_segments([0, 0, 0], 4, torch.float32))
    for wrong_y, wrong_x in (
        (y.bfloat16(), x.bfloat16()),
        (y, x.bfloat16()),
        (torch.randn(OUT, 3).T, x),
        (y[:2], x[:2]),
    ):
        with pytest.raises(ValueError, match="must"):
            add_lora(wrong_y, wrong_x, segments)
