"""What compiled kernels read of a step's adapters: addresses and row ranges, made on the host.

Weights stay where their adapter was loaded, each at its own rank.  An adapter has one table of
addresses, made when it is loaded; a step has one list of chunks, each of which points to the table
of its adapter.  A module's number picks the entry, so all layers and projections of a step share
one list, and only that list is copied to the device: 24 bytes for each chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FEW_ROWS, MANY_ROWS = 16, 64
"""Rows of a chunk, where segments are short and where they are long."""
_ALIGNMENT_BYTES = 16  # of the widest load


class Pair(Protocol):
    """One module's update: ``scale * b @ a``."""

    @property
    def a(self) -> Tensor:
        """``[rank, in]``."""
        ...

    @property
    def b(self) -> Tensor:
        """``[out, rank]``."""
        ...

    @property
    def scale(self) -> float:
        """Factor of the update."""
        ...


@dataclass(frozen=True, slots=True)
class LoraTable:
    """Where one adapter's weights lie."""

    entries: Tensor
    """``[modules, 4]`` int64, on the device: address of a, address of b, rank, bits of the
    float32 scale; zeros where the adapter leaves a module alone."""
    ranks: NDArray[np.int64]
    """``[modules]``, on the host."""
    dtype: torch.dtype
    """Of the weights."""
    pairs: tuple[Pair | None, ...]
    """Held, since their addresses are in use."""


class TableRows(NamedTuple):
    """Rows ``[start, end)`` of a step that one adapter computes."""

    start: int
    end: int
    table: LoraTable


@dataclass(frozen=True, slots=True)
class StepSegments:
    """A step's segments for all modules."""

    chunks: Tensor
    """``[chunks, 3]`` int64, on the device: address of the adapter's entries, first row, row
    after the last.  A chunk without rows does nothing."""
    chunk_rows: int
    """Rows of a chunk at most."""
    end: int
    """Row after the last of all chunks."""
    max_ranks: NDArray[np.int64]
    """``[modules]``, on the host: largest rank among the adapters."""
    tables: tuple[LoraTable, ...]
    """Held, since their addresses are in use."""

    def at(self, module: int) -> "ModuleSegments | None":
        """Return what one module sees; None if no adapter of the step targets it."""
        return ModuleSegments(self, module) if self.max_ranks[module] else None


@dataclass(frozen=True, slots=True)
class ModuleSegments:
    """A step's segments as one module sees them."""

    step: StepSegments
    module: int
    """Which entry of each table to read."""

    @property
    def max_rank(self) -> int:
        """Largest rank of the module among the adapters, not 0."""
        return int(self.step.max_ranks[self.module])

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.step.tables[0].dtype


def lora_table(
    pairs: Sequence[Pair | None],
    shapes: Sequence[tuple[int, int]],
    *,
    dtype: torch.dtype,
    device: torch.device,
    b_is_transposed: bool = False,
) -> LoraTable:
    """Note where an adapter's weights lie.

    Args:
        pairs: of each module; None, or rank 0, where the adapter leaves it alone.
        shapes: ``(out, in)`` of each module.
        dtype: of all weights.
        device: of all weights.
        b_is_transposed: ``b`` must lie in memory as ``[rank, out]``, not as ``[out, rank]``.

    Raises:
        ValueError: a kernel would read past a weight, or read it wrong.
    """
    device = torch.empty(0, device=device).device  # `cuda` is `cuda:0`, say
    entries = np.zeros((len(pairs), 4), np.int64)
    for entry, pair, (out_width, in_width) in zip(entries, pairs, shapes, strict=True):
        if pair is None or pair.a.shape[0] == 0:
            continue
        rank = pair.a.shape[0]
        _check_weight("a", pair.a, (rank, in_width), dtype, device)
        if b_is_transposed:
            _check_weight("b transposed", pair.b.T, (rank, out_width), dtype, device)
        else:
            _check_weight("b", pair.b, (out_width, rank), dtype, device)
        scale_bits = np.float32(pair.scale).view(np.int32)
        entry[:] = pair.a.data_ptr(), pair.b.data_ptr(), rank, scale_bits
    return LoraTable(
        torch.from_numpy(entries).to(device), entries[:, 2].copy(), dtype, tuple(pairs)
    )


def _check_weight(
    name: str, weight: Tensor, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    if weight.shape != shape or weight.dtype is not dtype or weight.device != device:
        found = f"{tuple(weight.shape)} {weight.dtype} on {weight.device}"
        raise ValueError(f"{name} is {found}, not {shape} {dtype} on {device}")
    if not weight.is_contiguous() or weight.data_ptr() % _ALIGNMENT_BYTES:
        raise ValueError(
            f"{name} must be contiguous and start at a multiple of {_ALIGNMENT_BYTES} bytes:"
            " clone() makes it so"
        )


def step_segments(rows: Sequence[TableRows]) -> StepSegments:
    """Cut a step's segments into chunks; none crosses from one segment into the next.

    A chunk is a tile of the kernels: as tall as what a tensor core takes where segments are
    short, taller where they are long, so that weights are fetched for more rows at a time.

    Args:
        rows: at least one, not overlapping; their tables have the same modules, dtype and device.
    """
    num_rows = sum(segment.end - segment.start for segment in rows)
    chunk_rows = FEW_ROWS if num_rows <= FEW_ROWS * len(rows) else MANY_ROWS
    chunks = [
        (segment.table.entries.data_ptr(), start, min(start + chunk_rows, segment.end))
        for segment in rows
        for start in range(segment.start, segment.end, chunk_rows)
    ]
    device = rows[0].table.entries.device
    return StepSegments(
        chunks=torch.tensor(chunks, dtype=torch.int64).view(-1, 3).to(device),
        chunk_rows=chunk_rows,
        end=max(segment.end for segment in rows),
        max_ranks=np.max([segment.table.ranks for segment in rows], axis=0),
        tables=tuple(segment.table for segment in rows),
    )
