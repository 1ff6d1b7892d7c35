"""Modules that share an input, gains and offsets, and graphs' buffers, by the interpreter."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from tests.kernels.lora_cases import IN, TOLERANCES, make_batch, make_segment
from torch import Tensor

from loraplex.kernels.lora import LoraSegment, add_lora
from loraplex.kernels.lora_reference import add_lora_reference
from loraplex.kernels.segment_buffers import SegmentBuffers
from loraplex.kernels.segments import Slices, TableRows, lora_table, step_segments

CPU = torch.device("cpu")
WIDTHS = (130, 7, 301)  # of modules that share an input; the last has several tiles
SLICES = Slices.of([4, 0, 2], WIDTHS, IN)
SHAPES = [(7, IN), (5, 6), (301, IN), (3, 2), (130, IN)]  # of the model's modules


class Gain(NamedTuple):
    gain: Tensor | None
    offset: Tensor | None


class Adapter(NamedTuple):
    """What it does in each of the slices."""

    pairs: tuple[LoraSegment | None, ...]
    affines: tuple[Gain | None, ...]

    def rows(self, start: int, end: int, dtype: torch.dtype) -> TableRows:
        of_modules = [*SLICES.modules]
        pairs, affines = (
            [of[of_modules.index(module)] if module in of_modules else None for module in range(5)]
            for of in self
        )
        table = lora_table(pairs, SHAPES, dtype=dtype, device=CPU, affines=affines)
        return TableRows(start, end, table)


def make_adapter(
    ranks: Sequence[int], dtype: torch.dtype, gains: Sequence[str] = ("", "", "")
) -> Adapter:
    """A rank for each of the slices, 0 to leave it alone, and which of ``gain`` and ``offset``."""
    pairs = [
        make_segment(0, 0, rank, dtype, widths=(IN, width)) if rank else None
        for rank, width in zip(ranks, WIDTHS, strict=True)
    ]
    affines = [
        Gain(
            torch.randn(width) if "gain" in of else None,
            torch.randn(width) if "offset" in of else None,
        )
        if of
        else None
        for of, width in zip(gains, WIDTHS, strict=True)
    ]
    return Adapter(tuple(pairs), tuple(affines))


def reference(y: Tensor, x: Tensor, adapters: Sequence[tuple[int, int, Adapter]]) -> Tensor:
    result = y.double()
    for start, end, adapter in adapters:
        columns = result[start:end].split(WIDTHS, dim=1)
        for own, pair, affine in zip(columns, adapter.pairs, adapter.affines, strict=True):
            if pair is not None:
                update = pair._replace(end=end - start)
                own.copy_(add_lora_reference(own, x[start:end], [update]))
            if affine is not None and affine.gain is not None:
                own.mul_(affine.gain.double())
            if affine is not None and affine.offset is not None:
                own.add_(affine.offset.double())
    return result


def assert_equals_reference(
    adapters: Sequence[tuple[int, int, Adapter]], rows: int, dtype: torch.dtype
) -> None:
    y, x = make_batch(rows, dtype, widths=(IN, sum(WIDTHS)))
    expected, before = reference(y, x, adapters), y.clone()
    step = step_segments([each.rows(start, end, dtype) for start, end, each in adapters])
    add_lora(y, x, step.at(SLICES))
    relative, absolute = TOLERANCES[dtype]
    torch.testing.assert_close(y.double(), expected, rtol=relative, atol=absolute)
    outside = torch.ones(rows, dtype=torch.bool)
    for start, end, _ in adapters:
        outside[start:end] = False
    assert torch.equal(y[outside], before[outside])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [4, 70])  # both schedules
def test_modules_that_share_an_input_share_launches(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    adapters = [
        (0, rows - 2, make_adapter((8, 33, 1), dtype)),
        (rows - 1, rows, make_adapter((0, 70, 5), dtype)),
    ]
    assert_equals_reference(adapters, rows, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_gains_and_offsets_come_after_the_update(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    adapters = [
        (0, 1, make_adapter((4, 2, 3), dtype, ("gain", "gain offset", ""))),
        (2, 4, make_adapter((0, 0, 8), dtype, ("offset", "", "gain offset"))),
    ]
    assert_equals_reference(adapters, 5, dtype)


def test_an_adapter_may_have_gains_and_offsets_alone() -> None:
    torch.manual_seed(2)
    only = make_adapter((0, 0, 0), torch.float32, ("gain", "offset", ""))
    assert_equals_reference([(1, 3, only)], 3, torch.float32)


def test_a_slice_that_an_adapter_leaves_alone_keeps_its_bits() -> None:
    y, x = make_batch(2, torch.float32, widths=(IN, sum(WIDTHS)))
    y[:, 0] = -0.0  # -0.0 + 0.0 is 0.0
    before = y.clone()
    rows = make_adapter((0, 3, 0), torch.float32).rows(0, 2, torch.float32)
    add_lora(y, x, step_segments([rows]).at(SLICES))
    changed = (y.view(torch.int32) != before.view(torch.int32)).any(dim=0).split(WIDTHS)
    assert [bool(of_slice.any()) for of_slice in changed] == [False, True, False]


def test_columns_that_are_not_the_modules_are_refused() -> None:
    rows = make_adapter((1, 3, 2), torch.float32).rows(0, 2, torch.float32)
    y, x = make_batch(2, torch.float32, widths=(IN, sum(WIDTHS) + 1))
    with pytest.raises(
        ValueError, match=r"have 439 columns, of x 37; the modules have \(438, 37\)"
    ):
        add_lora(y, x, step_segments([rows]).at(SLICES))


def buffers(max_rank: int = 33) -> SegmentBuffers:
    return SegmentBuffers.of(len(SHAPES), 6, max_rank, torch.float32, CPU)


def test_buffers_hold_one_step_after_the_other() -> None:
    torch.manual_seed(3)
    room = buffers()
    captured = room.step.at(SLICES)
    assert captured is not None
    first, second = make_adapter((8, 33, 1), torch.float32), make_adapter((0, 2, 5), torch.float32)
    steps = [
        [(0, 1, first), (1, 3, second), (4, 6, first)],
        [(2, 3, second)],
        [],
        [(0, 6, first)],
    ]
    for adapters in steps:
        y, x = make_batch(6, torch.float32, widths=(IN, sum(WIDTHS)))
        expected, before = reference(y, x, adapters), y.clone()
        room.fill([each.rows(start, end, torch.float32) for start, end, each in adapters])
        add_lora(y, x, captured)
        torch.testing.assert_close(y.double(), expected, rtol=2e-6, atol=1e-5)
        assert adapters or torch.equal(y, before)


def test_rows_have_the_same_bits_in_buffers_as_in_a_step_of_their_own() -> None:
    torch.manual_seed(4)
    rows = make_adapter((8, 33, 1), torch.float32).rows(1, 3, torch.float32)
    y, x = make_batch(6, torch.float32, widths=(IN, sum(WIDTHS)))
    in_buffers, room = y.clone(), buffers()
    add_lora(y, x, step_segments([rows]).at(SLICES))
    room.fill([rows])
    add_lora(in_buffers, x, room.step.at(SLICES))
    assert torch.equal(in_buffers, y)


def test_a_step_that_buffers_have_no_room_for_is_refused() -> None:
    adapter = make_adapter((8, 33, 1), torch.float32)
    rows = adapter.rows(0, 7, torch.float32)
    with pytest.raises(ValueError, match="1 chunks up to row 7, of ranks up to 33, do not fit"):
        buffers().fill([rows])
    with pytest.raises(ValueError, match="buffers for 6 rows of ranks up to 32: run the step"):
        buffers(max_rank=32).fill([rows._replace(end=6)])
    with pytest.raises(ValueError, match="7 chunks up to row 1"):
        buffers().fill([rows._replace(end=1)] * 7)
    half = make_adapter((1, 1, 1), torch.float16).rows(0, 1, torch.float16)
    with pytest.raises(ValueError, match=r"buffers are for weights in torch\.float32"):
        buffers().fill([half])
