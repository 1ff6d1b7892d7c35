"""Batches for every implementation of ``add_lora``: who computes which rows, at which rank."""

from collections.abc import Callable, Iterator, Mapping
from itertools import cycle, islice

import torch

from loraplex.kernels.lora import LoraSegment
from loraplex.kernels.segments import Slices

IN, OUT = 37, 53
BASE = -1
RANKS = (1, 2, 4, 7, 8, 16, 33, 64, 128)
ALL_RANKS = (*RANKS, 256, 512)
"""To the largest that is served; Triton's interpreter takes long for it."""
ROWS = (1, 2, 3, 7, 133)
TOLERANCES: Mapping[torch.dtype, tuple[float, float]] = {  # dtype: relative, absolute
    torch.float32: (2e-6, 1e-5),
    torch.bfloat16: (2**-8, 1e-5),  # half a unit in the last place: one rounding, at the end
    torch.float16: (2**-11, 1e-5),
}
ASSIGNMENTS: Mapping[
    str, Callable[[int], list[int]]
] = {  # adapter of each of n rows, in order; -1 is the base model
    "distinct": lambda n: list(range(n)),
    "uniform": lambda n: [row * 4 // n for row in range(n)],
    "zipf": lambda n: sorted(n // (row + 1) for row in range(n)),
    "identical": lambda n: [0] * n,
    "skewed": lambda n: [BASE] * (n // 3) + [0] * (n - n // 3 - 1) + [1],
}


def one_module(module: int = 0, *, widths: tuple[int, int] = (IN, OUT)) -> Slices:
    in_width, out_width = widths
    return Slices.of([module], [out_width], in_width)


def make_batch(
    rows: int, dtype: torch.dtype, *, widths: tuple[int, int] = (IN, OUT)
) -> tuple[torch.Tensor, torch.Tensor]:
    """``y`` and ``x``; the norm of a row of ``x`` does not grow with its width."""
    in_width, out_width = widths
    x = torch.randn(rows, in_width) * (IN / in_width) ** 0.5
    return torch.randn(rows, out_width).to(dtype), x.to(dtype)


def make_segment(
    start: int,
    end: int,
    rank: int,
    dtype: torch.dtype,
    *,
    widths: tuple[int, int] = (IN, OUT),
    scale: float = 1.3,
) -> LoraSegment:
    in_width, out_width = widths
    a = torch.randn(rank, in_width).to(dtype)
    b = (torch.randn(out_width, rank) / rank).to(dtype)
    return LoraSegment(start, end, a, b, scale)


def make_segments(assignment: list[int], rank: int, dtype: torch.dtype) -> list[LoraSegment]:
    return [
        make_segment(start, end, rank, dtype, scale=0.3 + adapter % 5)
        for adapter, start, end in ranges(assignment)
    ]


def ranges(assignment: list[int]) -> list[tuple[int, int, int]]:
    """Adapter, first row and row after the last, of each adapter."""
    adapters = sorted(set(assignment) - {BASE})
    starts = [assignment.index(adapter) for adapter in adapters]
    return [
        (adapter, start, start + assignment.count(adapter))
        for adapter, start in zip(adapters, starts, strict=True)
    ]


def unlike_assignments(rows: int) -> list[list[int]]:
    """``ASSIGNMENTS`` for so many rows, those once that cut them alike."""
    assignments = [assign(rows) for assign in ASSIGNMENTS.values()]
    cuts = {tuple((start, end) for _, start, end in ranges(a)): a for a in assignments}
    return list(cuts.values())


def mixed_rank_batches(
    assignment: list[int], dtype: torch.dtype, all_ranks: tuple[int, ...] = RANKS
) -> Iterator[tuple[torch.Tensor, torch.Tensor, list[LoraSegment]]]:
    """As few batches as let adapters of this assignment have each of the ranks once or more."""
    segments_of = ranges(assignment)
    for first in range(0, len(all_ranks), len(segments_of)):
        ranks = islice(cycle(all_ranks), first, None)
        y, x = make_batch(len(assignment), dtype)
        yield (
            y,
            x,
            [
                make_segment(start, end, rank, dtype, scale=0.3 + adapter % 5)
                for (adapter, start, end), rank in zip(segments_of, ranks, strict=False)
            ],
        )
