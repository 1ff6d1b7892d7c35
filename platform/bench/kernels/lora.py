"""Low-rank updates of one step, through all linear layers of a model but the head."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple, Self

import torch
from torch import Tensor

from loraplex.kernels.cpu_kernels import CpuKernels
from loraplex.kernels.lora import LoraSegment, PlainSegments, add_lora
from loraplex.kernels.lora_cpu import CpuSegments
from loraplex.kernels.segments import Slices, TableRows, lora_table
from loraplex.platform.bench.floors import Work
from loraplex.platform.bench.kernels.case import NO_COMPILER, OURS, Absent, Case, Contender
from loraplex.platform.bench.kernels.plan import KernelPlan

RANKS = (8, 16, 32, 64)
"""Of the adapters, in turn."""
NUM_ADAPTERS = 16
_SCALE = 0.01
_MOST_GATHERED_BYTES = 64 << 20
_MOST_CONCATENATED_ROWS = 512
_PREFILL_LAYERS = 2
"""Many rows make arithmetic the work, so that it matters little where weights come from."""


class Traffic(NamedTuple):
    """Which rows of a step have which adapter, in order."""

    name: str
    ranks: tuple[int, ...]
    """Of each adapter."""
    rows: tuple[int, ...]
    """Of each adapter."""


def decode_traffic() -> list[Traffic]:
    """Return the decode steps that are measured."""
    distinct = [
        Traffic(f"{_adapters(count)} r8–64", _ranks(count), (1,) * count)
        for count in (1, 4, 8, NUM_ADAPTERS)
    ]
    zipf = (1, 1, 1, 1, 1, 3, 8)  # the i-th row has adapter 16 // i
    return [
        *distinct,
        Traffic("16 rows on 1 adapter r32", (32,), (NUM_ADAPTERS,)),
        Traffic("16 rows on 7 adapters r8–64, Zipf", _ranks(len(zipf)), zipf),
        Traffic("1 adapter r128 + 15 r8", (128,) + (8,) * 15, (1,) * NUM_ADAPTERS),
    ]


def lora_cases(plan: KernelPlan, kernels: CpuKernels | None) -> Iterator[Case]:
    """Yield decode steps, then a step of prompts, in each dtype."""
    for dtype in plan.dtypes:
        for traffic in decode_traffic():
            yield _case(plan, kernels, traffic, dtype, plan.layers)
        prompts, rows = plan.prefill
        name = f"{prompts} prompts of {rows}, {_adapters(prompts)} r8–64"
        traffic = Traffic(name, _ranks(prompts), (rows,) * prompts)
        yield _case(plan, kernels, traffic, dtype, min(_PREFILL_LAYERS, plan.layers))


def _adapters(count: int) -> str:
    return "1 adapter" if count == 1 else f"{count} adapters"


def _ranks(count: int) -> tuple[int, ...]:
    """The larger first, so that a single adapter is none that costs nothing."""
    return tuple(RANKS[::-1][index % len(RANKS)] for index in range(count))


@dataclass(frozen=True, slots=True)
class _Module:
    """Weights of all adapters for one module, one below the other."""

    a: Tensor
    """``[sum of ranks, in]``."""
    b: Tensor
    """``[sum of ranks, out]``: transposed, as all contenders read it fastest."""
    x: Tensor
    """``[rows, in]``."""
    y: Tensor
    """``[rows, out]``."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One step's updates."""

    traffic: Traffic
    modules: tuple[_Module, ...]
    num_compared: int
    """Modules of the first layer."""
    groups: tuple[tuple[int, ...], ...]
    """Numbers of modules that share an input, of all layers."""

    @classmethod
    def of(cls, plan: KernelPlan, traffic: Traffic, dtype: torch.dtype, layers: int) -> Self:
        generator = torch.Generator().manual_seed(plan.seed)
        num_rows, num_ranks = sum(traffic.rows), sum(traffic.ranks)
        linears = plan.shape.linears
        widths = sorted({width for linear in linears for width in linear})

        def normal(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, generator=generator).to(dtype)

        inputs = {width: normal(num_rows, width) for width in widths}
        outputs = {width: normal(num_rows, width) for width in widths}
        modules = [
            _Module(
                normal(num_ranks, in_width),
                normal(num_ranks, out_width),
                inputs[in_width],
                outputs[out_width],
            )
            for out_width, in_width in linears * layers
        ]
        firsts = range(0, len(modules), len(linears))
        groups = [
            tuple(first + number for number in group)
            for first in firsts
            for group in plan.shape.groups
        ]
        return cls(traffic, tuple(modules), len(linears), tuple(groups))

    def segments(self, module: _Module) -> list[LoraSegment]:
        """Views of the module's weights, one for each adapter."""
        rows, ranks = _cuts(self.traffic.rows), _cuts(self.traffic.ranks)
        return [
            LoraSegment(start, end, module.a[low:high], module.b[low:high].T, _SCALE)
            for (start, end), (low, high) in zip(rows, ranks, strict=True)
        ]

    def work(self) -> Work:
        """Each weight is read once; rows are read, and read and written."""
        num_bytes = flops = 0
        for module in self.modules:
            widths = module.a.shape[1] + module.b.shape[1]
            num_bytes += module.a.nbytes + module.b.nbytes + module.x.nbytes + 2 * module.y.nbytes
            pairs = zip(self.traffic.rows, self.traffic.ranks, strict=True)
            flops += 2 * widths * sum(rows * rank for rows, rank in pairs)
        return Work(num_bytes, flops)

    def expected(self) -> Tensor:
        """The first layer's rows, by sums in float64."""
        outputs = []
        for module in self.modules[: self.num_compared]:
            y = module.y.double()
            for start, end, a, b, scale in self.segments(module):
                y[start:end] += scale * module.x[start:end].double() @ a.double().T @ b.double().T
            outputs.append(y.flatten())
        return torch.cat(outputs)

    def contender(self, name: str, adders: Sequence["_Adder"]) -> Contender:
        """``adders`` compute all modules, in order."""
        of_first_layer = [a for a in adders if a.modules[0] < self.num_compared]

        def run() -> None:
            for adder in adders:
                adder.add(adder.y)

        def output() -> Tensor:
            outputs = []
            for adder in of_first_layer:
                y = adder.y.clone()
                adder.add(y)
                widths = [self.modules[number].y.shape[1] for number in adder.modules]
                outputs += [y[:, low:high].flatten() for low, high in _cuts(widths)]
            return torch.cat(outputs)

        return Contender(name, run, output)

    def each(self, name: str, adder: Callable[["_Step", _Module], "_Add"]) -> Contender:
        """A contender to whom each module is one of its own."""
        return self.contender(
            name,
            [
                _Adder((number,), module.y, adder(self, module))
                for number, module in enumerate(self.modules)
            ],
        )


_Add = Callable[[Tensor], object]
"""Adds updates to the rows that it is given."""


class _Adder(NamedTuple):
    """How a contender computes one module, or several that share an input."""

    modules: tuple[int, ...]
    y: Tensor
    """``[rows, sum of out]``."""
    add: _Add


def _case(
    plan: KernelPlan,
    kernels: CpuKernels | None,
    traffic: Traffic,
    dtype: torch.dtype,
    layers: int,
) -> Case:
    step = _Step.of(plan, traffic, dtype, layers)
    return Case(
        op="lora",
        name=traffic.name,
        rows=sum(traffic.rows),
        layers=layers,
        dtype=dtype,
        work=step.work(),
        expected=step.expected(),
        contenders=(
            _compiled(step, kernels, dtype),
            step.each("ours, torch", _by_torch),
            step.each("loop over adapters", _loop),
            _concatenated(step),
            _gathered(step),
        ),
    )


def _compiled(step: _Step, kernels: CpuKernels | None, dtype: torch.dtype) -> Contender | Absent:
    if kernels is None:
        return Absent(OURS, NO_COMPILER)
    segments = [step.segments(module) for module in step.modules]
    shapes = [(module.b.shape[1], module.a.shape[1]) for module in step.modules]
    device = torch.device("cpu")
    rows = [
        TableRows(
            of_adapter[0].start,
            of_adapter[0].end,
            lora_table(of_adapter, shapes, dtype=dtype, device=device, b_is_transposed=True),
        )
        for of_adapter in zip(*segments, strict=True)
    ]
    located = CpuSegments.of(rows, kernels.lora)

    def adder(numbers: tuple[int, ...]) -> _Adder:
        modules = [step.modules[number] for number in numbers]
        widths, x = [module.y.shape[1] for module in modules], modules[0].x
        at = located.at(Slices.of(numbers, widths, x.shape[1]))
        assert at is not None, "each adapter has each module"
        y = torch.cat([module.y for module in modules], dim=1)
        return _Adder(numbers, y, lambda y: add_lora(y, x, at))

    return step.contender(OURS, [adder(numbers) for numbers in step.groups])


def _by_torch(step: _Step, module: _Module) -> _Add:
    segments = PlainSegments(step.segments(module))
    return lambda y: add_lora(y, module.x, segments)


def _loop(step: _Step, module: _Module) -> _Add:
    segments = step.segments(module)

    def add(y: Tensor) -> None:
        for start, end, a, b, scale in segments:
            y[start:end].addmm_(module.x[start:end] @ a.T, b.T, alpha=scale)

    return add


def _concatenated(step: _Step) -> Contender | Absent:
    name = "concatenate and mask"
    if sum(step.traffic.rows) > _MOST_CONCATENATED_ROWS:
        return Absent(name, "would compute all adapters for each row of a prompt, for minutes")
    return step.each(name, _masked)


def _masked(step: _Step, module: _Module) -> _Add:
    """All rows by all adapters, and what is not a row's own made zero."""
    mask = module.x.new_zeros(len(module.x), len(module.a))
    rows, ranks = _cuts(step.traffic.rows), _cuts(step.traffic.ranks)
    for (start, end), (low, high) in zip(rows, ranks, strict=True):
        mask[start:end, low:high] = _SCALE
    return lambda y: y.addmm_((module.x @ module.a.T).mul_(mask), module.b)


def _gathered(step: _Step) -> Contender | Absent:
    """Weights padded to the largest rank and copied for each row, as most CPU fallbacks do it."""
    name, traffic = "gather + bmm", step.traffic
    widest = max(max(module.a.shape[1], module.b.shape[1]) for module in step.modules)
    num_bytes = sum(traffic.rows) * max(traffic.ranks) * widest * step.modules[0].a.itemsize
    if num_bytes > _MOST_GATHERED_BYTES:
        return Absent(name, "would copy weights for each row of a prompt, gigabytes of them")
    owners = torch.arange(len(traffic.rows)).repeat_interleave(torch.tensor(traffic.rows))

    def adder(_: _Step, module: _Module) -> _Add:
        a, b = (_padded(weights, traffic.ranks) for weights in (module.a, module.b))

        def add(y: Tensor) -> None:
            shrunk = torch.bmm(a[owners], module.x[:, :, None])  # [rows, largest rank, 1]
            y.add_(torch.bmm(shrunk.transpose(1, 2), b[owners])[:, 0], alpha=_SCALE)

        return add

    return step.each(name, adder)


def _padded(weights: Tensor, ranks: tuple[int, ...]) -> Tensor:
    """``[adapters, largest rank, width]``."""
    padded = weights.new_zeros(len(ranks), max(ranks), weights.shape[1])
    for into, (low, high) in zip(padded, _cuts(ranks), strict=True):
        into[: high - low] = weights[low:high]
    return padded


def _cuts(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and end of each, one after the other."""
    return pairwise([0, *accumulate(sizes)])
