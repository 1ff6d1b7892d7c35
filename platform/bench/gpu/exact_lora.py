"""Whether low-rank updates are right on the card: every variant, beside sums in float64."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from loraplex.kernels.lora import LoraSegment, add_lora
from loraplex.kernels.segments import ModuleSegments, Slices, TableRows, lora_table, step_segments
from loraplex.platform.bench.gpu.records import TOLERANCES, Check, Comparison, Record, equal_bits
from loraplex.platform.bench.gpu.stage import Setup

RANKS = (1, 2, 4, 7, 8, 16, 33, 64, 128, 256)
_NORM = 6
"""Of a row of x, whatever its width, so that one tolerance fits all."""


@dataclass(frozen=True, slots=True)
class _Gained:
    gain: Tensor
    offset: Tensor


class Owned(NamedTuple):
    """Rows of one adapter."""

    num_rows: int
    rank: int
    """0 is the base model's."""


class Batch(NamedTuple):
    """Rows of a step, as modules see them that share an input."""

    y: Tensor
    x: Tensor
    segments: ModuleSegments | None
    expected: Tensor
    """``[rows, out]`` float64."""


def exact_lora(dtype: torch.dtype, setup: Setup) -> Iterator[Record]:
    """Compare each schedule, rank, width and kind of slices."""
    generator = torch.Generator(setup.device).manual_seed(0)
    maker = BatchMaker(setup.device, dtype, generator)
    named = str(dtype).removeprefix("torch.")
    relative, absolute = TOLERANCES[dtype]
    if dtype is torch.bfloat16 and not setup.on_gpu:
        relative *= 2  # Triton's interpreter cuts off where a GPU rounds
    for schedule, rows in _schedules(setup):
        comparison = Comparison(f"lora, {schedule}, {named}", (relative, absolute))
        for widths, in_width in _widths(setup):
            for has_gains in (False, True):
                for owned in rows:
                    batch = maker.make(owned, widths, in_width, has_gains=has_gains)
                    case = f"{owned} on {in_width} to {widths}, gains: {has_gains}"
                    comparison.add(case, added(batch), batch.expected)
        yield comparison.check()
    yield from _promises(maker, named, setup)
    if setup.on_gpu and dtype is torch.float16:
        yield _far_apart(generator)


def _schedules(setup: Setup) -> list[tuple[str, list[list[Owned]]]]:
    """Assignments of rows to adapters: those that tiles of few rows take, and of many."""
    ranks = cycle((1, 7, 16, 33) if setup.small else RANKS)
    sizes = (1, 3) if setup.small else (1, 2, 7, 16, 32)
    distinct = [[Owned(1, next(ranks)) for _ in range(size)] for size in sizes]
    skewed = [Owned(2, 0), Owned(9, 16), Owned(1, 8), Owned(3, 0), Owned(1, 33)]
    long = [[Owned(70, rank)] for rank in ((8,) if setup.small else (1, 16, 64, 256))]
    return [
        ("decodes", [*distinct, skewed]),
        ("prompts", [*long, [Owned(5, 0), Owned(133, 16), Owned(65, 7), Owned(1, 64)]]),
    ]


def _widths(setup: Setup) -> list[tuple[tuple[int, ...], int]]:
    """Outputs of modules that share an input, and its width."""
    awkward: list[tuple[tuple[int, ...], int]] = [((53,), 37), ((53, 16, 16), 40)]
    if setup.small:
        return awkward
    real: list[tuple[tuple[int, ...], int]] = [((4096, 1024, 1024), 4096), ((4096,), 11008)]
    return [*awkward, *real]


@dataclass(frozen=True, slots=True)
class BatchMaker:
    """Makes random batches."""

    device: torch.device
    dtype: torch.dtype
    generator: torch.Generator

    def normal(self, *shape: int) -> Tensor:
        """Random numbers of the batch's dtype."""
        values = torch.randn(shape, generator=self.generator, device=self.device)
        return values.to(self.dtype)

    def make(
        self, owned: Sequence[Owned], widths: Sequence[int], in_width: int, *, has_gains: bool
    ) -> Batch:
        """Return rows of these adapters, and what becomes of them."""
        num_rows = sum(each.num_rows for each in owned)
        x = self.normal(num_rows, in_width) * (_NORM / in_width**0.5)
        y = self.normal(num_rows, sum(widths))
        expected, rows = y.double(), []
        columns = list(pairwise([0, *accumulate(widths)]))
        starts = accumulate((each.num_rows for each in owned), initial=0)
        for start, (length, rank) in zip(starts, owned, strict=False):
            if not rank:
                continue
            own = slice(start, start + length)
            pairs = [self._pair(rank, width, in_width) for width in widths]
            affines = [self._affine(width) for width in widths] if has_gains else []
            for number, (low, high) in enumerate(columns):
                part = expected[own, low:high]
                part += _update(x[own], pairs[number])
                if affines:
                    part *= affines[number].gain.double()
                    part += affines[number].offset.double()
            shapes = [(width, in_width) for width in widths]
            table = lora_table(pairs, shapes, dtype=self.dtype, device=self.device, affines=affines)
            rows.append(TableRows(own.start, own.stop, table))
        slices = Slices.of(range(len(widths)), widths, in_width, self.device)
        return Batch(y, x, step_segments(rows).at(slices) if rows else None, expected)

    def _pair(self, rank: int, width: int, in_width: int) -> LoraSegment:
        b = self.normal(width, rank) / rank
        return LoraSegment(0, 0, self.normal(rank, in_width), b, 1.3)

    def _affine(self, width: int) -> _Gained:
        return _Gained(*(torch.randn(width, device=self.device) for _ in range(2)))


def _update(x: Tensor, pair: LoraSegment) -> Tensor:
    return pair.scale * x.double() @ pair.a.double().T @ pair.b.double().T


def added(batch: Batch) -> Tensor:
    """Return the rows with their updates."""
    y = batch.y.clone()
    if batch.segments is not None:
        add_lora(y, batch.x, batch.segments)
    return y


def _promises(maker: BatchMaker, named: str, setup: Setup) -> Iterator[Check]:
    """What kernels promise of bits."""
    width = 64 if setup.small else 4096
    batch = maker.make([Owned(3, 0), Owned(1, 7), Owned(2, 0)], [width], width, has_gains=False)
    batch.y[0, 0], batch.y[5, 0] = -0.0, float("nan")  # -0.0 + 0.0 is 0.0
    is_base = [row != 3 for row in range(6)]
    yield equal_bits(
        f"lora, rows of the base model keep their bits, {named}",
        added(batch)[is_base],
        batch.y[is_base],
    )
    many = maker.make([Owned(133, 64)], [width], width, has_gains=True)
    yield equal_bits(f"lora, equal steps give equal bits, {named}", added(many), added(many))
    shared = maker.make([Owned(1, 7), Owned(8, 128)], [width], width, has_gains=False)
    assert shared.segments is not None
    first = shared.segments.step.tables[0]
    alone = step_segments([TableRows(0, 1, first)]).at(shared.segments.slices)
    row = Batch(shared.y[:1], shared.x[:1], alone, shared.expected[:1])
    yield equal_bits(
        f"lora, a row's bits depend on no other row, {named}", added(row), added(shared)[:1]
    )


def _far_apart(generator: torch.Generator) -> Check:
    """Rows may lie further apart than 32 bits count."""
    maker = BatchMaker(torch.device("cuda"), torch.float16, generator)
    batch = maker.make([Owned(2, 8)], [53], 37, has_gains=False)
    stride = 2**31 + 16
    far = torch.empty(stride + 64, dtype=torch.float16, device="cuda")
    x = far.as_strided(batch.x.shape, (stride, 1))
    x.copy_(batch.x)
    comparison = Comparison("lora, rows 4 GiB apart", TOLERANCES[torch.float16])
    comparison.add("two rows", added(batch._replace(x=x)), batch.expected)
    return comparison.check()
