"""The dense layers of one step: all linear layers of a model and its head."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import linear

from loraplex.kernels.cpu_kernels import CpuKernels
from loraplex.kernels.linear import Packer
from loraplex.kernels.linear_onednn import OneDnnPacker
from loraplex.platform.bench.floors import Work
from loraplex.platform.bench.kernels.case import (
    NO_COMPILER,
    OURS,
    Absent,
    Case,
    Contender,
)
from loraplex.platform.bench.kernels.plan import KernelPlan
from loraplex.platform.bench.kernels.shape import KernelShape

_ONEDNN = "oneDNN packed"
_MANY_ROWS = 256
"""From so many on arithmetic is the work: one layer shows it, and a slow dtype ends."""


class _Call(NamedTuple):
    """How a contender computes one weight, or several that see one input."""

    in_width: int
    apply: Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class _Way:
    """How a contender computes all weights."""

    first_layer: tuple[_Call, ...]
    """All that see the first input come first."""
    others: tuple[_Call, ...]
    num_first: int
    """Calls for the first input."""

    @classmethod
    def of(
        cls, weights: "_Weights", pack: Callable[[Sequence[Tensor]], _Call], *, joins: bool
    ) -> Self:
        """``joins`` packs weights together that see one input."""
        groups = (
            weights.groups if joins else [(number,) for group in weights.groups for number in group]
        )
        calls = [pack([weights.all[number] for number in group]) for group in groups]
        num_first = 1 if joins else len(weights.groups[0])
        per_layer = len(weights.shape.groups) if joins else len(weights.shape.linears)
        return cls(tuple(calls[:per_layer]), tuple(calls[per_layer:]), num_first)


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights of all layers, and of the head at the end."""

    shape: KernelShape
    all: tuple[Tensor, ...]

    @classmethod
    def random(cls, plan: KernelPlan, dtype: torch.dtype) -> Self:
        generator = torch.Generator().manual_seed(plan.seed)
        head = (plan.shape.vocab_size, plan.shape.hidden_size)
        shapes = [*plan.shape.linears * plan.layers, head]
        return cls(
            plan.shape,
            tuple(
                torch.randn(shape, generator=generator).mul_(shape[1] ** -0.5).to(dtype)
                for shape in shapes
            ),
        )

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """Numbers of those that see one input."""
        per_layer = len(self.shape.linears)
        firsts = range(0, len(self.all) - 1, per_layer)
        groups = [
            tuple(first + number for number in group)
            for first in firsts
            for group in self.shape.groups
        ]
        return [*groups, (len(self.all) - 1,)]


def dense_cases(plan: KernelPlan, kernels: CpuKernels | None) -> Iterator[Case]:
    """Yield each number of rows in each dtype."""
    for dtype in plan.dtypes:
        weights = _Weights.random(plan, dtype)
        ways = dict(_ways(weights, dtype, kernels))
        for rows in plan.rows:
            yield _case(plan, rows, weights, ways)


def _ways(
    weights: _Weights, dtype: torch.dtype, kernels: CpuKernels | None
) -> Iterator[tuple[str, _Way | str]]:
    """All weights as each contender computes them, or why it cannot."""
    if kernels is None:
        yield OURS, NO_COMPILER
    else:
        yield OURS, _Way.of(weights, partial(_packed, kernels.linear), joins=True)
    onednn = OneDnnPacker.of(dtype)
    if onednn is None:
        yield _ONEDNN, "oneDNN packs no weights of this dtype on this processor"
    else:
        yield _ONEDNN, _Way.of(weights, partial(_packed, onednn), joins=False)
    yield "F.linear", _Way.of(weights, _plain, joins=False)


def _packed(packer: Packer, weights: Sequence[Tensor]) -> _Call:
    packed = packer.pack(weights)
    return _Call(weights[0].shape[1], lambda x: packed.apply(x, None))


def _plain(weights: Sequence[Tensor]) -> _Call:
    (weight,) = weights
    return _Call(weight.shape[1], lambda x: linear(x, weight))


def _case(plan: KernelPlan, rows: int, weights: _Weights, ways: Mapping[str, _Way | str]) -> Case:
    few, dtype = rows < _MANY_ROWS, weights.all[0].dtype
    used = weights.all if few else weights.all[: len(plan.shape.linears)]
    generator = torch.Generator().manual_seed(plan.seed)
    inputs = {
        width: torch.randn(rows, width, generator=generator).to(dtype)
        for width in sorted({weight.shape[1] for weight in used})
    }

    def contender(name: str, way: _Way) -> Contender:
        calls = (*way.first_layer, *way.others) if few else way.first_layer

        def run() -> None:
            for call in calls:
                call.apply(inputs[call.in_width])

        def output() -> Tensor:
            first = calls[: way.num_first]
            return torch.cat([call.apply(inputs[call.in_width]) for call in first], dim=1)

        return Contender(name, run, output)

    compared = torch.cat([weights.all[number] for number in weights.groups[0]])
    return Case(
        op="dense",
        name=f"{rows} row{'s'[: rows > 1]}",
        rows=rows,
        layers=plan.layers if few else 1,
        dtype=dtype,
        work=Work(
            num_bytes=sum(w.nbytes + rows * sum(w.shape) * w.itemsize for w in used),
            flops=2 * rows * sum(weight.numel() for weight in used),
        ),
        expected=inputs[compared.shape[1]].double() @ compared.double().T,
        contenders=tuple(
            Absent(name, way) if isinstance(way, str) else contender(name, way)
            for name, way in ways.items()
        ),
    )
