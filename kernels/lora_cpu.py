"""Low-rank updates on CPUs by compiled code, where a compiler is at hand; see ``cpu/lora.cpp``."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loraplex.kernels.compiled import Call, Function, Library
from loraplex.kernels.segments import LoraTable, Slices, TableRows

_READ_ROWS = 8
"""Rows with which multiplying weights takes as long as reading them from memory."""


class _Plan(ctypes.Structure):
    """``Plan`` of ``cpu/lora.cpp``."""

    _fields_ = (
        ("chunks", ctypes.c_void_p),
        ("num_chunks", ctypes.c_int64),
        ("slices", ctypes.c_void_p),
        ("num_slices", ctypes.c_int64),
        ("in_width", ctypes.c_int64),
        ("num_threads", ctypes.c_int64),
    )


_INT64_BYTES = 8
_STRUCT_BYTES = (ctypes.sizeof(_Plan), *(_INT64_BYTES * count for count in (3, 3, 6)))
"""Of a plan, and of a row of chunks, slices and a table's entries."""


@dataclass(frozen=True, slots=True)
class CpuSegments:
    """A step's segments for all modules."""

    chunks: Tensor
    """``[segments, 3]`` int64: address of the adapter's entries, first row, row after the last."""
    end: int
    """Row after the last of all segments."""
    touches: NDArray[np.bool_]
    """``[modules]``: True where any adapter does something."""
    add: Function
    """Of the kernel, for the dtype of the weights."""
    products: tuple[int, ...]
    """Of each module, for one input or output of it: what a call takes follows from them."""
    tables: tuple[LoraTable, ...]
    """Held, since their addresses are in use."""
    found: "dict[Slices, CpuModuleSegments | None]" = field(default_factory=dict, compare=False)
    """What `at` found; steps whose rows are the same share it."""

    @classmethod
    def of(cls, rows: Sequence[TableRows], kernel: "CpuLora") -> "CpuSegments":
        """Lay out a step.

        Args:
            rows: at least one, not overlapping; their tables are of this CPU, have the same modules
                and dtype, and ``b`` transposed in memory.
            kernel: computes it.

        Raises:
            ValueError: weights differ in dtype, or the kernel does not know it.
        """
        tables = tuple(segment.table for segment in rows)
        dtypes = {table.dtype for table in tables}
        if len(dtypes) > 1 or not kernel.supports(tables[0].dtype):
            raise ValueError(f"weights must have one dtype that is supported, not {dtypes}")
        chunks = [(s.table.entries.data_ptr(), s.start, s.end) for s in rows]
        heights = np.array([max(s.end - s.start, _READ_ROWS) for s in rows])
        return cls(
            chunks=torch.tensor(chunks, dtype=torch.int64),
            end=max(segment.end for segment in rows),
            touches=np.any([table.touches for table in tables], axis=0),
            add=kernel.adds[tables[0].dtype],
            products=tuple((heights @ np.stack([table.ranks for table in tables])).tolist()),
            tables=tables,
        )

    def at(self, slices: Slices) -> "CpuModuleSegments | None":
        """Return what these modules see; None if every adapter of the step leaves them alone.

        Raises:
            ValueError: the modules have other shapes.
        """
        if slices not in self.found:
            is_touched = self.touches[[*slices.modules]].any()
            self.found[slices] = CpuModuleSegments.of(self, slices) if is_touched else None
        return self.found[slices]


@dataclass(frozen=True, slots=True)
class CpuModuleSegments:
    """A step's segments as modules see them that share an input."""

    step: CpuSegments
    slices: Slices
    """Which entries of each table to read, and what they change."""
    dtype: torch.dtype
    """Of the weights."""
    plan: _Plan
    """The same for the compiled code."""
    plan_address: int
    add_to: Call
    """Adds the updates; takes ``y``, ``x`` and the plan."""

    @classmethod
    def of(cls, step: CpuSegments, slices: Slices) -> "CpuModuleSegments":
        """Raises ValueError if the modules have other shapes in the tables."""
        for module, width in zip(slices.modules, slices.widths, strict=True):
            if step.tables[0].shapes[module] != (width, slices.in_width):
                shape = step.tables[0].shapes[module]
                raise ValueError(f"module {module} is {shape}, not {(width, slices.in_width)}")
        plan = _Plan(
            step.chunks.data_ptr(),
            len(step.chunks),
            slices.table.data_ptr(),
            len(slices),
            slices.in_width,
            torch.get_num_threads(),
        )
        products = sum(
            step.products[module] * (slices.in_width + width)
            for module, width in zip(slices.modules, slices.widths, strict=True)
        )
        add_to = step.add.for_work(products)
        return cls(step, slices, step.tables[0].dtype, plan, ctypes.addressof(plan), add_to)

    def add(self, y: Tensor, x: Tensor) -> None:
        """Update ``y`` in place; see ``add_lora``.

        Args:
            y: ``[rows, out]``, the dtype of the weights; elements of a row are adjacent.
            x: ``[rows, in]``, the dtype of ``y``.

        Raises:
            ValueError: memory would be read or written wrong.
        """
        if x.stride(1) != 1:
            x = x.contiguous()
        if not self._fits(y, x):
            wanted = f"[{self.step.end} or more, {self.slices.width}] {self.dtype} with adjacent"
            raise ValueError(
                f"y must be {wanted} columns, and x {self.slices.in_width} wide: they are "
                f"{tuple(y.shape)} {y.dtype} and {tuple(x.shape)} {x.dtype}"
            )
        self.add_to(y.data_ptr(), y.stride(0), x.data_ptr(), x.stride(0), self.plan_address)

    def _fits(self, y: Tensor, x: Tensor) -> bool:
        num_rows, width = y.shape
        return (
            y.dtype is x.dtype is self.dtype
            and x.shape == (num_rows, self.slices.in_width)
            and num_rows >= self.step.end
            and width >= self.slices.width
            and y.stride(1) == 1
        )


class CpuLora:
    """The compiled kernel."""

    def __init__(self, library: Library) -> None:
        """Bind the functions of ``cpu/lora.cpp``.

        Raises:
            AttributeError: one is missing.
            OSError: it is of another layout.
        """
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        types = (pointer, integer, pointer, integer, pointer)
        self.adds = {
            torch.float32: library.bind("add_lora_float32", *types),
            torch.bfloat16: library.bind("add_lora_bfloat16", *types),
        }
        library.check_struct_bytes("lora_struct_bytes", _STRUCT_BYTES)

    def supports(self, dtype: torch.dtype) -> bool:
        """True if weights and rows of this dtype can be computed."""
        return dtype in self.adds


def transposed_in_memory(b: Tensor) -> Tensor:
    """Return ``b [out, rank]`` with its bytes in the order of ``[rank, out]``."""
    return b.T.contiguous().T
