"""Dense layers on CPUs by compiled code, where a compiler is at hand; see ``cpu/linear.cpp``."""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from loraplex.kernels.compiled import Function, Library
from loraplex.kernels.linear import widths_of

_READ_ROWS = 8
"""Rows with which multiplying weights takes as long as reading them from memory."""


@dataclass(frozen=True, slots=True)
class PanelLayout:
    """In which order the compiled kernel reads weights."""

    panel: int
    """Outputs that are computed at a time."""
    block: int
    """Inputs after which the next panel follows."""
    lanes: int
    """Numbers of a vector: two vectors of bfloat16 lie as one of pairs."""

    def parts(self, packed: Tensor, lined: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield views of the same weights, ``packed`` in this order and ``lined`` as ``[out, in]``,
        whose outputs are whole panels; one pair for each block."""
        num_panels = lined.shape[0] // self.panel
        pairs = 2 if packed.dtype is torch.bfloat16 else 1
        split = (num_panels, self.panel // self.lanes // pairs, pairs, self.lanes)
        for block in torch.split(lined, self.block, dim=1):
            num_in = block.shape[1]
            here, packed = packed[: block.numel()], packed[block.numel() :]
            inner = here.view(num_panels, num_in, split[1], self.lanes, pairs)
            yield inner.permute(0, 2, 4, 3, 1), block.view(*split, num_in)


class CpuLinear:
    """The compiled kernel."""

    name = "compiled code"

    def __init__(self, library: Library) -> None:
        """Bind the functions of ``cpu/linear.cpp``.  Raises AttributeError if one is missing."""
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        types = (*(pointer,) * 4, *(integer,) * 5, pointer, integer)
        self._applies = {
            torch.float32: library.bind("linear_float32", *types),
            torch.bfloat16: library.bind("linear_bfloat16", *types),
        }
        self._layout = PanelLayout(*library.numbers("linear_layout", 3))

    def supports(self, dtype: torch.dtype) -> bool:
        """True if weights and rows of this dtype can be computed."""
        return dtype in self._applies

    def pack(self, weights: Sequence[Tensor]) -> "CompiledWeight":
        """See `Packer.pack`."""
        kinds = {(weight.dtype, weight.shape[1]) for weight in weights}
        if len(kinds) > 1 or not self.supports(weights[0].dtype):
            raise ValueError(
                f"weights must have one input and one dtype that is supported: {kinds}"
            )
        widths = widths_of(weights)
        lined = (weights[0] if len(weights) == 1 else torch.cat(tuple(weights))).detach()
        lined = functional.pad(lined, (0, 0, 0, -sum(widths) % self._layout.panel))
        packed = lined.new_empty(lined.numel())
        for inside, outside in self._layout.parts(packed, lined):
            inside.copy_(outside)
        return CompiledWeight(
            packed=packed,
            widths=widths,
            width=sum(widths),
            width_in=weights[0].shape[1],
            layout=self._layout,
            kernel=self._applies[packed.dtype],
        )


@dataclass(frozen=True, slots=True)
class CompiledWeight:
    """Weights packed for the compiled kernel."""

    packed: Tensor
    """In the order of ``layout``, with outputs of zero to whole panels."""
    widths: tuple[int, ...]
    width: int
    """Of all together."""
    width_in: int
    layout: PanelLayout
    kernel: Function

    def apply(self, x: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
        """See `PackedWeight.apply`.  A row's bits depend on neither the other rows nor threads.

        Raises:
            ValueError: memory would be read or written wrong.
        """
        num_rows, width = x.shape[0], self.width
        dtype, scratch = self.packed.dtype, None
        self._check(x, (num_rows, self.width_in))
        if out is None:
            out = torch.empty(num_rows, width, dtype=dtype)
        else:
            self._check(out, (num_rows, width))
        if bias is not None and not (bias.dtype is dtype and bias.shape == (width,)):
            raise ValueError(f"a bias must be {(width,)} of {dtype}")
        if dtype is torch.bfloat16:
            scratch = torch.empty(num_rows * (self.width_in + width))
        products = max(num_rows, _READ_ROWS) * self.width_in * width
        self.kernel.for_work(products)(
            self.packed.data_ptr(),
            None if bias is None else bias.data_ptr(),
            x.data_ptr(),
            out.data_ptr(),
            self.width_in,
            width,
            num_rows,
            x.stride(0),
            out.stride(0),
            None if scratch is None else scratch.data_ptr(),
            torch.get_num_threads(),
        )
        return out

    def unpack(self) -> tuple[Tensor, ...]:
        """See `PackedWeight.unpack`; these are views of one copy."""
        lined = self.packed.new_empty(self.packed.numel() // self.width_in, self.width_in)
        for inside, outside in self.layout.parts(self.packed, lined):
            outside.copy_(inside)
        return torch.split(lined[: self.width], list(self.widths))

    def _check(self, rows: Tensor, shape: tuple[int, int]) -> None:
        is_readable = rows.stride(1) == 1 or shape[1] == 1
        if rows.shape != shape or rows.dtype is not self.packed.dtype or not is_readable:
            raise ValueError(
                f"rows must be {shape} of {self.packed.dtype}, each in one piece, not "
                f"{tuple(rows.shape)} of {rows.dtype} with strides {rows.stride()}"
            )
