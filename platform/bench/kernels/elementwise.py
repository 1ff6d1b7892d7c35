"""What the layers of one step compute between matrix products and attention."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from loraplex.kernels.cpu_kernels import CpuKernels
from loraplex.kernels.elementwise import Activation, CpuElementwise, Norm
from loraplex.platform.bench.floors import Work
from loraplex.platform.bench.kernels.case import (
    NO_COMPILER,
    OURS,
    Absent,
    Case,
    Contender,
)
from loraplex.platform.bench.kernels.plan import KernelPlan

_EPS = 1e-5
Compute = Callable[[], Tensor]


class _Op(NamedTuple):
    """One op, of one layer."""

    name: str
    num_bytes: int
    """Read and written."""
    flops: int
    expected: Tensor
    by_torch: dict[str, Compute]
    ours: Compute | None


def elementwise_cases(plan: KernelPlan, kernels: CpuKernels | None) -> Iterator[Case]:
    """Yield each op at each number of rows in each dtype.

    Rows are the same in all layers, as they are in a model: they come from a cache.
    """
    ops = None if kernels is None else kernels.elementwise
    for dtype in plan.dtypes:
        for rows in plan.rows:
            rows_of = _Rows(plan, rows, dtype)
            for op in (
                _norm(rows_of, ops),
                _add_norm(rows_of, ops),
                _gated(rows_of, ops),
                _rotary(rows_of, ops),
            ):
                yield Case(
                    op="elementwise",
                    name=f"{op.name}, {rows} row{'s'[: rows > 1]}",
                    rows=rows,
                    layers=plan.layers,
                    dtype=dtype,
                    work=Work(op.num_bytes * plan.layers, op.flops * plan.layers),
                    expected=op.expected,
                    contenders=(
                        Absent(OURS, NO_COMPILER)
                        if op.ours is None
                        else _contender(OURS, op.ours, plan.layers),
                        *(_contender(name, way, plan.layers) for name, way in op.by_torch.items()),
                    ),
                )


def _contender(name: str, compute: Compute, layers: int) -> Contender:
    def run() -> None:
        for _ in range(layers):
            compute()

    return Contender(name, run, compute)


class _Rows:
    """Random rows of a step."""

    def __init__(self, plan: KernelPlan, rows: int, dtype: torch.dtype) -> None:
        self.shape, self.rows, self.dtype = plan.shape, rows, dtype
        self._generator = torch.Generator().manual_seed(plan.seed)

    def normal(self, *shape: int) -> Tensor:
        """Random numbers."""
        return torch.randn(self.rows, *shape, generator=self._generator).to(self.dtype)


def _norm(rows: _Rows, ops: CpuElementwise | None) -> _Op:
    x = rows.normal(rows.shape.hidden_size)
    gain = torch.linspace(0.5, 1.5, x.shape[1])
    norm, typed = Norm(gain, _EPS, rounds_first=True), gain.to(x.dtype)
    return _Op(
        name="RMS norm",
        num_bytes=2 * x.nbytes,
        flops=4 * x.numel(),
        expected=_normed(x.double(), gain),
        by_torch={
            "torch, as models write it": lambda: _llama_norm(x, typed),
            "torch.rms_norm": lambda: rms_norm(x, x.shape[1:], typed, _EPS),
        },
        ours=None if ops is None else (lambda: ops.rms_norm(x, norm)),
    )


def _add_norm(rows: _Rows, ops: CpuElementwise | None) -> _Op:
    x, residual = (rows.normal(rows.shape.hidden_size) for _ in range(2))
    gain = torch.linspace(0.5, 1.5, x.shape[1])
    norm, typed = Norm(gain, _EPS, rounds_first=True), gain.to(x.dtype)
    return _Op(
        name="residual + RMS norm",
        num_bytes=4 * x.nbytes,
        flops=5 * x.numel(),
        expected=_normed((residual + x).double(), gain),
        by_torch={"torch, as models write it": lambda: _llama_norm(residual + x, typed)},
        ours=None if ops is None else (lambda: ops.add_norm(x, residual, after=norm)[1]),
    )


def _gated(rows: _Rows, ops: CpuElementwise | None) -> _Op:
    gate, up = (rows.normal(rows.shape.intermediate_size) for _ in range(2))
    return _Op(
        name="SwiGLU",
        num_bytes=3 * gate.nbytes,
        flops=5 * gate.numel(),
        expected=silu(gate.double()) * up.double(),
        by_torch={"torch, as models write it": lambda: silu(gate) * up},
        ours=None if ops is None else (lambda: ops.gated(gate, up, Activation.SILU)),
    )


def _rotary(rows: _Rows, ops: CpuElementwise | None) -> _Op:
    """Queries and keys are heads side by side in one tensor."""
    shape = rows.shape
    x = rows.normal(shape.num_heads + shape.num_kv_heads, shape.head_dim)
    angles = torch.linspace(0, 3, rows.rows)[:, None] * torch.linspace(1, 2, shape.head_dim // 2)
    cos, sin = (of(torch.cat((angles, angles), dim=1)).to(x.dtype) for of in (torch.cos, torch.sin))

    def in_place() -> Tensor:
        assert ops is not None
        turned.copy_(x)
        ops.rotary(turned[:, : shape.num_heads], turned[:, shape.num_heads :], cos, sin)
        return turned

    turned = torch.empty_like(x)
    return _Op(
        name="rotary positions",
        num_bytes=2 * x.nbytes + cos.nbytes + sin.nbytes,
        flops=3 * x.numel(),
        expected=_rotated(x.double(), cos.double(), sin.double()),
        by_torch={"torch, as models write it": lambda: _rotated(x, cos, sin)},
        ours=None if ops is None else in_place,
    )


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat((-second, first), dim=-1) * sin[:, None]


def _llama_norm(x: Tensor, gain: Tensor) -> Tensor:
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + _EPS)
    return gain * normed.to(x.dtype)


def _normed(x: Tensor, gain: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + _EPS) * gain.double()
