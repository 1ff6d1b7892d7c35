"""What a decoder layer computes between its matrix products and its attention, on a CPU.

Each op is one call of ``cpu/elementwise.cpp``; `elementwise_reference` has them in plain torch.
Arithmetic is float32.  Where rows are bfloat16, ``rounded`` below rounds to that as the models of
transformers do it on the way, so that results differ from theirs by the order of a sum alone.  A
row's bits depend on neither the other rows nor the number of threads.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Self

import torch
from torch import Tensor

from loraplex.kernels.compiled import Library

_DTYPES: Mapping[torch.dtype, int] = MappingProxyType({torch.float32: 0, torch.bfloat16: 1})
_VALUE_PRODUCTS = 32
"""A value of a row takes about as long as so many products."""


class Activation(IntEnum):
    """The function that a gate goes through."""

    SILU = 0
    """``x / (1 + exp(-x))``"""
    GELU_TANH = 1
    """``x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2``"""
    RELU = 2
    """``max(x, 0)``"""
    RELU_SQUARED = 3
    """``max(x, 0)^2``"""


@dataclass(frozen=True, slots=True)
class Norm:
    """A root mean square norm (arXiv:1910.07467)::

    norm(x)[i] = rounded(x[i] / sqrt(mean over j of x[j]^2 + eps)) * gain[i]
    """

    gain: Tensor
    """``[width]`` float32, contiguous, on the CPU."""
    eps: float
    rounds_first: bool
    """Whether what the gain multiplies is ``rounded``, as in Llama; not so in Gemma."""
    width: int = field(init=False)
    arguments: tuple[int, float, bool] = field(init=False)
    """What compiled ops get."""

    def __post_init__(self) -> None:
        """Look up what each call needs."""
        object.__setattr__(self, "width", self.gain.shape[0])
        arguments = (self.gain.data_ptr(), self.eps, self.rounds_first)
        object.__setattr__(self, "arguments", arguments)

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Return itself: a copy would hold the address of what it does not own."""
        return self


_NO_NORM = (None, 0.0, False)


class CpuElementwise:
    """The compiled ops.  All take and return tensors of the CPU, float32 or bfloat16.

    A layer calls them five times and computes microseconds, so they look at each tensor once.
    """

    def __init__(self, library: Library) -> None:
        """Bind ``cpu/elementwise.cpp``.  Raises AttributeError if a function is missing."""
        pointer, integer, threads = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
        norm = (pointer, ctypes.c_float, ctypes.c_bool)
        heads = (pointer, integer, integer, integer, *norm)
        self._rms_norm = library.bind(
            "rms_norm", integer, *[pointer] * 2, *[integer] * 2, *norm, threads
        )
        self._add_norm = library.bind(
            "add_norm",
            *(integer, *[pointer] * 4, *[integer] * 2, ctypes.c_float, *norm, *norm, threads),
        )
        self._rotary = library.bind(
            "rotary",
            *(*[integer] * 3, *heads, *heads, integer, *[pointer] * 2, integer, threads),
        )
        self._gated = library.bind("gated", integer, *[pointer] * 3, *[integer] * 4, threads)

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Return itself: it holds no state, and functions of a library cannot be copied."""
        return self

    def supports(self, dtype: torch.dtype) -> bool:
        """True if rows of this dtype can be computed."""
        return dtype in _DTYPES

    def rms_norm(self, x: Tensor, norm: Norm) -> Tensor:
        """Return ``norm(x)``, row by row.

        Args:
            x: ``[..., width]``.
            norm: of the same width.

        Returns:
            ``[..., width]``, contiguous.
        """
        x = x.contiguous()
        width = x.shape[-1]
        if norm.width != width:
            raise ValueError(f"a norm of {norm.width} numbers has another width than {_told(x)}")
        y = torch.empty_like(x)
        self._rms_norm.for_work(_VALUE_PRODUCTS * x.numel())(
            _DTYPES[x.dtype],
            y.data_ptr(),
            x.data_ptr(),
            x.numel() // width,
            width,
            *norm.arguments,
            torch.get_num_threads(),
        )
        return y

    def add_norm(
        self,
        x: Tensor,
        residual: Tensor,
        scale: float = 1.0,
        before: Norm | None = None,
        after: Norm | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Add what a part of a layer computed to the residual stream, and normalise the sum::

            h = residual + rounded(scale * rounded(before(x)))
            y = after(rounded(h))

        Args:
            x: ``[..., width]``.
            residual: the same shape and dtype; it is not changed.
            scale: factor of what is added.
            before: norm of what is added, if there is one.
            after: norm of the sum, if there is one.

        Returns:
            ``h`` and ``y``, contiguous, of the same shape; without ``after`` the same tensor.
        """
        x, residual = x.contiguous(), residual.contiguous()
        shape, dtype = x.shape, x.dtype
        width = shape[-1]
        if residual.shape != shape or residual.dtype is not dtype:
            raise ValueError(f"{_told(x)} cannot be added to {_told(residual)}")
        if (before and before.width != width) or (after and after.width != width):
            raise ValueError(f"a norm has another width than {_told(x)}")
        h = torch.empty_like(x)
        y = torch.empty_like(x) if after else h
        self._add_norm.for_work(_VALUE_PRODUCTS * x.numel())(
            _DTYPES[dtype],
            y.data_ptr(),
            h.data_ptr(),
            x.data_ptr(),
            residual.data_ptr(),
            x.numel() // width,
            width,
            scale,
            *(before.arguments if before else _NO_NORM),
            *(after.arguments if after else _NO_NORM),
            torch.get_num_threads(),
        )
        return h, y

    def rotary(
        self,
        q: Tensor,
        k: Tensor,
        cos: Tensor,
        sin: Tensor,
        q_norm: Norm | None = None,
        k_norm: Norm | None = None,
    ) -> None:
        """Turn the heads of each row to its position (arXiv:2104.09864), in place.

        With ``n = rotated / 2``, and ``t`` what a row is after its norm, if there is one::

            x[i]     = rounded(t[i] cos[i]) - rounded(t[n + i] sin[i])
            x[n + i] = rounded(t[n + i] cos[n + i]) + rounded(t[i] sin[n + i])

        for ``x`` of each head of ``q`` and ``k``, and ``i < n``; what lies beyond ``rotated`` in a
        head is not turned.  Products are rounded if the tables are of the dtype of ``q``.

        Args:
            q: ``[rows, heads, dim]``; heads of a row lie side by side, rows anywhere.
            k: ``[rows, kv_heads, dim]``, likewise.
            cos: ``[rows, rotated]`` or ``[1, rows, rotated]``, contiguous; the dtype of ``q`` or
                float32.
            sin: the same.
            q_norm: of each head, or of all heads of a row together: its width says which.
            k_norm: the same of ``k``.
        """
        num_rows, _, dim = q.shape
        dtype, table_dtype, rotated = q.dtype, cos.dtype, cos.shape[-1]
        if k.shape[0] != num_rows or k.shape[2] != dim or k.dtype is not dtype:
            raise ValueError(f"heads {_told(q)} and {_told(k)} differ")
        if (
            cos.numel() != num_rows * rotated
            or cos.shape != sin.shape
            or rotated % 2
            or rotated > dim
            or sin.dtype is not table_dtype
            or (table_dtype is not dtype and table_dtype is not torch.float32)
            or not cos.is_contiguous()
            or not sin.is_contiguous()
        ):
            raise ValueError(f"tables {_told(cos)} and {_told(sin)} do not turn {_told(q)}")
        self._rotary.for_work(_VALUE_PRODUCTS * (q.numel() + k.numel()))(
            _DTYPES[dtype],
            num_rows,
            dim,
            *_heads(q, q_norm),
            *_heads(k, k_norm),
            _DTYPES[table_dtype],
            cos.data_ptr(),
            sin.data_ptr(),
            rotated,
            torch.get_num_threads(),
        )

    def gated(self, gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
        """Return ``rounded(activation(gate)) * up``.

        Args:
            gate: ``[rows, width]`` or ``[1, rows, width]``; each row contiguous, rows anywhere.
            up: the same shape and dtype.
            activation: which.

        Returns:
            The same shape, contiguous.
        """
        shape, dtype = gate.shape, gate.dtype
        if up.shape != shape or up.dtype is not dtype:
            raise ValueError(f"gate {_told(gate)} and up {_told(up)} differ")
        num_rows, width = shape[-2:]
        gate_stride, gate_step = gate.stride()[-2:]
        up_stride, up_step = up.stride()[-2:]
        if gate_step != 1 or up_step != 1 or gate.numel() != num_rows * width:
            raise ValueError("rows of gate and up must be contiguous, and be of one step")
        y = torch.empty(*shape, dtype=dtype)
        self._gated.for_work(_VALUE_PRODUCTS * y.numel())(
            _DTYPES[dtype],
            y.data_ptr(),
            gate.data_ptr(),
            up.data_ptr(),
            activation,
            num_rows,
            width,
            gate_stride,
            up_stride,
            torch.get_num_threads(),
        )
        return y


def _heads(x: Tensor, norm: Norm | None) -> tuple[int | float | None, ...]:
    """Arguments that tell of heads ``[rows, heads, dim]``."""
    _, num_heads, dim = x.shape
    row_stride, head_stride, step = x.stride()
    if head_stride != dim or step != 1:
        raise ValueError(f"heads of {_told(x)} do not lie side by side")
    if norm is None:
        return x.data_ptr(), num_heads, row_stride, dim, *_NO_NORM
    if norm.width not in (dim, num_heads * dim):
        raise ValueError(f"a norm of {norm.width} numbers has another width than {_told(x)}")
    return x.data_ptr(), num_heads, row_stride, norm.width, *norm.arguments


def _told(x: Tensor) -> str:
    return f"{x.dtype} {tuple(x.shape)}"
