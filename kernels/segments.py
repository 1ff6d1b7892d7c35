"""What compiled kernels read of a step's adapters: addresses and row ranges, made on the host.

Weights stay where their adapter was loaded, each at its own rank.  An adapter has one table of
addresses, made when it is loaded; a step has one list of chunks, each of which points to the table
of its adapter.  A module's number picks the entry, so all layers and projections of a step share
one list, and only that list is copied to the device: 24 bytes for each chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loraplex.kernels.staging import host_tensor

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


class Affine(Protocol):
    """What becomes of one module's output after its update: ``gain * y + offset``."""

    @property
    def gain(self) -> Tensor | None:
        """``[out]`` float32; None is 1."""
        ...

    @property
    def offset(self) -> Tensor | None:
        """``[out]`` float32; None is 0."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """Columns of one tensor that several modules make of one input, each its own."""

    modules: tuple[int, ...]
    """Their numbers."""
    offsets: tuple[int, ...]
    """First column of each."""
    widths: tuple[int, ...]
    """Columns of each."""
    in_width: int
    table: Tensor
    """``[slices, 3]`` int64, on the device: the same, a row for each module."""

    @classmethod
    def of(
        cls,
        modules: Sequence[int],
        widths: Sequence[int],
        in_width: int,
        device: torch.device | str = "cpu",
    ) -> "Slices":
        """Side by side, in this order."""
        offsets = [0, *accumulate(widths)][:-1]
        rows = torch.tensor([*zip(modules, offsets, widths, strict=True)], dtype=torch.int64)
        return cls(tuple(modules), tuple(offsets), tuple(widths), in_width, rows.to(device))

    @property
    def width(self) -> int:
        """Columns of all."""
        return self.offsets[-1] + self.widths[-1]

    def __len__(self) -> int:
        return len(self.modules)


@dataclass(frozen=True, slots=True)
class LoraTable:
    """Where one adapter's weights lie.

    A module's output becomes ``gain * (y + scale * b (a x)) + offset``.  It is computed in float32
    whatever the dtype of ``y`` and of the weights, and rounded once, when ``y`` is written.
    """

    entries: Tensor
    """``[modules, 6]`` int64, on the device: address of a, address of b, rank, bits of the
    float32 scale, address of the gain, address of the offset; zeros for what is not there."""
    ranks: NDArray[np.int64]
    """``[modules]``, on the host."""
    touches: NDArray[np.bool_]
    """``[modules]``, on the host: False where the adapter leaves a module alone."""
    shapes: tuple[tuple[int, int], ...]
    """``(out, in)`` of each module."""
    dtype: torch.dtype
    """Of the weights."""
    pairs: tuple[Pair | None, ...]
    """Held, since their addresses are in use; empty if `data` holds them."""
    affines: tuple[Affine | None, ...]
    """Held as well; empty if there are none."""
    data: Tensor | None = None
    """Of all pairs, if they lie in one tensor."""


class PairPlaces(NamedTuple):
    """Where pairs lie in one tensor."""

    modules: NDArray[np.int64]
    """``[pairs]``: the module of each."""
    shapes: NDArray[np.int64]
    """``[pairs, 3]``: out, in, rank."""
    starts: NDArray[np.int64]
    """``[pairs, 2]``: first element of a and of b."""
    scales: NDArray[np.float64]
    """``[pairs]``."""


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
    touches: NDArray[np.bool_]
    """``[modules]``, on the host: True where any adapter does something."""
    dtype: torch.dtype
    """Of all weights."""
    tables: tuple[LoraTable, ...]
    """Held, since their addresses are in use."""

    def at(self, slices: Slices) -> "ModuleSegments | None":
        """Return what these modules see; None if every adapter of the step leaves them alone."""
        return ModuleSegments(self, slices) if self.touches[[*slices.modules]].any() else None


@dataclass(frozen=True, slots=True)
class ModuleSegments:
    """A step's segments as modules see them that share an input."""

    step: StepSegments
    slices: Slices
    """Which entries of each table to read, and what they change."""

    @property
    def max_rank(self) -> int:
        """Largest rank of the modules among the adapters; 0 if they have only gains, say."""
        return int(self.step.max_ranks[[*self.slices.modules]].max())

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.step.dtype


def lora_table(
    pairs: Sequence[Pair | None],
    shapes: Sequence[tuple[int, int]],
    *,
    dtype: torch.dtype,
    device: torch.device,
    b_is_transposed: bool = False,
    affines: Sequence[Affine | None] = (),
) -> LoraTable:
    """Note where an adapter's weights lie.

    Args:
        pairs: of each module; None, or rank 0, where it has no low-rank update.
        shapes: ``(out, in)`` of each module.
        dtype: of all weights.
        device: of all weights.
        b_is_transposed: ``b`` must lie in memory as ``[rank, out]``, not as ``[out, rank]``.
        affines: of each module; empty if none has any.

    Raises:
        ValueError: a kernel would read past a weight, or read it wrong.
    """
    device = torch.empty(0, device=device).device  # `cuda` is `cuda:0`, say
    entries = np.zeros((len(pairs), 6), np.int64)
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
        entry[:4] = pair.a.data_ptr(), pair.b.data_ptr(), rank, scale_bits
    _note_affines(entries, affines, shapes, device)
    return _table(entries, shapes, dtype, device, pairs=tuple(pairs), affines=tuple(affines))


def packed_table(
    pairs: PairPlaces,
    data: Tensor,
    shapes: Sequence[tuple[int, int]],
    *,
    affines: Sequence[Affine | None] = (),
) -> LoraTable:
    """The same for pairs that lie in one tensor ``data``, without asking each.

    Raises:
        ValueError: a kernel would read past a weight, or read it wrong.
    """
    modules, starts, (outs, widths, ranks) = pairs.modules, pairs.starts, pairs.shapes.T
    of_modules = np.array(shapes, np.int64).reshape(-1, 2)[modules]
    ends = starts + np.stack((ranks * widths, outs * ranks), axis=1)
    if np.any(of_modules != pairs.shapes[:, :2]) or np.any(ends > len(data)):
        raise ValueError("a and b have not the shapes of their modules, or lie outside the tensor")
    addresses = data.data_ptr() + starts * data.itemsize
    if not data.is_contiguous() or np.any(addresses % _ALIGNMENT_BYTES):
        raise ValueError(f"a and b must start at multiples of {_ALIGNMENT_BYTES} bytes")
    entries = np.zeros((len(shapes), 6), np.int64)
    entries[modules, :2] = addresses
    entries[modules, 2] = ranks
    entries[modules, 3] = pairs.scales.astype(np.float32).view(np.int32)
    _note_affines(entries, affines, shapes, data.device)
    return _table(entries, shapes, data.dtype, data.device, affines=tuple(affines), data=data)


def _note_affines(
    entries: NDArray[np.int64],
    affines: Sequence[Affine | None],
    shapes: Sequence[tuple[int, int]],
    device: torch.device,
) -> None:
    for entry, affine, (out_width, _) in zip(entries, affines, shapes, strict=bool(affines)):
        vectors = (affine.gain, affine.offset) if affine is not None else ()
        for column, vector in enumerate(vectors, 4):
            if vector is not None:
                _check_weight("gain or offset", vector, (out_width,), torch.float32, device)
                entry[column] = vector.data_ptr()


def _table(
    entries: NDArray[np.int64],
    shapes: Sequence[tuple[int, int]],
    dtype: torch.dtype,
    device: torch.device,
    *,
    pairs: tuple[Pair | None, ...] = (),
    affines: tuple[Affine | None, ...],
    data: Tensor | None = None,
) -> LoraTable:
    return LoraTable(
        entries=torch.from_numpy(entries).to(device),
        ranks=entries[:, 2].copy(),
        touches=np.any(entries[:, [2, 4, 5]] != 0, axis=1),
        shapes=tuple(shapes),
        dtype=dtype,
        pairs=pairs,
        affines=affines,
        data=data,
    )


def _check_weight(
    name: str, weight: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
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
    chunks = cut_into_chunks(rows, chunk_rows)
    device = rows[0].table.entries.device
    host = host_tensor(chunks.size, torch.int64, device).view(chunks.shape)
    host.numpy()[:] = chunks
    return StepSegments(
        chunks=host.to(device, non_blocking=True),
        chunk_rows=chunk_rows,
        end=max(segment.end for segment in rows),
        max_ranks=np.max([segment.table.ranks for segment in rows], axis=0),
        touches=np.any([segment.table.touches for segment in rows], axis=0),
        dtype=rows[0].table.dtype,
        tables=tuple(segment.table for segment in rows),
    )


def cut_into_chunks(rows: Sequence[TableRows], chunk_rows: int) -> NDArray[np.int64]:
    """Return ``StepSegments.chunks`` of at most ``chunk_rows`` rows each, on the host."""
    chunks = [
        (segment.table.entries.data_ptr(), start, min(start + chunk_rows, segment.end))
        for segment in rows
        for start in range(segment.start, segment.end, chunk_rows)
    ]
    return np.array(chunks, np.int64).reshape(-1, 3)
