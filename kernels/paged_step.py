"""What attention on a GPU needs to know of a step: one tensor that all layers read."""

from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loraplex.kernels.attention import Spans
from loraplex.kernels.staging import host_tensor

TILE_ROWS = 64
"""Rows of a tile at most; see ``PagedStep.chunks``."""
_ALIGNMENT = 4  # int32s of the widest load
Flat = TypeVar("Flat", Tensor, NDArray[np.int32])


@dataclass(frozen=True, slots=True)
class PagedStep:
    """All of a step that does not depend on the layer, as int32 on the device."""

    decodes: Tensor
    """``[n, 4]``: sequence, row, 1, position, of each span of one row.  Tiles of 0 rows are room
    that is not used."""
    chunks: Tensor
    """``[n, 4]``: sequence, first row, number of rows, position of the first row, of all other
    spans, cut into tiles of at most ``TILE_ROWS`` rows."""
    block_tables: Tensor
    """``[sequences, blocks]``; beyond a sequence's own blocks any block."""
    first_rows: Tensor
    """``[sequences + 1]``: where the rows of each begin, and the end of all."""
    num_keys: Tensor
    """``[sequences]``: positions of each, those of the step included."""
    slots: Tensor
    """``[rows]``: where the keys and values of each row are written, block times block size plus
    place; -1 is nowhere."""
    most: "Most"


class Most(NamedTuple):
    """Upper bounds of a step; launches are sized by them."""

    rows: int
    """Of a span."""
    keys: int
    """Of a span."""
    keys_of_decode: int
    """Of a span of one row."""

    @classmethod
    def of(cls, spans: Spans) -> "Most":
        """Of these spans."""
        ends = spans.starts + spans.lengths
        decodes = ends[spans.lengths == 1]
        return cls(*(int(of.max(initial=1)) for of in (spans.lengths, ends, decodes)))


@dataclass(frozen=True, slots=True)
class PagedLayout:
    """Lays out steps for one pool of blocks."""

    block_size: int
    device: torch.device

    def step(self, spans: Spans) -> PagedStep:
        """Return a step of its own size, by one copy that does not wait for the device."""
        tiles = _Tiles.of(spans)
        sizes = _Sizes.of(spans, tiles)
        device = self.host(sizes, spans, tiles).to(self.device, non_blocking=True)
        return sizes.step(device, Most.of(spans))

    def buffers(self, max_rows: int, max_keys: int) -> "DecodeBuffers":
        """Return a step whose tensors stay where they are, for steps of decodes alone.

        Args:
            max_rows: sequences of a step at most.
            max_keys: positions of a sequence at most, its last row included.
        """
        sizes = _Sizes(max_rows, 0, max_rows, -(-max_keys // self.block_size), max_rows)
        empty = Spans.of([])
        device = self.host(sizes, empty, _Tiles.of(empty)).to(self.device)
        step = sizes.step(device, Most(1, max_keys, max_keys))
        return DecodeBuffers(self, step, sizes, device)

    def host(self, sizes: "_Sizes", spans: Spans, tiles: "_Tiles") -> Tensor:
        """Return a step as it lies in one tensor of the host, which may have room for more."""
        host = host_tensor(sizes.bounds()[-1], torch.int32, self.device)
        _fill(sizes.parts(host.numpy()), spans, tiles, self.block_size)
        return host


@dataclass(frozen=True, slots=True)
class DecodeBuffers:
    """Metadata of decodes with room for the largest step, rewritten before each replay of a graph.

    Capture what reads ``step``; then, for every step, ``fill`` and replay.
    """

    layout: PagedLayout
    step: PagedStep
    sizes: "_Sizes"
    device: Tensor
    """All of ``step``, in one tensor."""

    def fill(self, spans: Spans) -> None:
        """Let ``step`` hold these spans; room that is left does nothing.

        The copy is queued on the current stream, so what was launched there before still sees the
        step before.

        Raises:
            ValueError: a span has more than one row or more keys than there is room for, or there
                are too many.
        """
        count, most, room = len(spans.lengths), Most.of(spans), self.step.most
        if count > self.sizes.rows or most.rows > 1 or most.keys > room.keys:
            raise ValueError(
                f"{count} spans of up to {most.rows} rows and {most.keys} keys do not fit into"
                f" buffers for {self.sizes.rows} decodes of {room.keys} keys: run the step without"
                " a graph"
            )
        host = self.layout.host(self.sizes, spans, _Tiles.of(spans))
        self.device.copy_(host, non_blocking=True)


class _Sizes(NamedTuple):
    """Of the parts of a step, which lie in one tensor."""

    decodes: int
    chunks: int
    sequences: int
    blocks: int
    rows: int

    @classmethod
    def of(cls, spans: Spans, tiles: "_Tiles") -> "_Sizes":
        sequences, blocks = spans.block_tables.shape
        return cls(
            len(tiles.decodes), len(tiles.chunks), sequences, blocks, int(spans.lengths.sum())
        )

    def step(self, flat: Tensor, most: Most) -> PagedStep:
        """Views of ``flat``."""
        decodes, chunks, block_tables, first_rows, num_keys, slots = self.parts(flat)
        return PagedStep(decodes, chunks, block_tables, first_rows, num_keys, slots, most)

    def parts(self, flat: Flat) -> list[Flat]:
        """Views of all parts, in the order of ``PagedStep``."""
        return [
            flat[start : start + prod(shape)].reshape(shape)
            for start, shape in zip(self.bounds(), self._shapes(), strict=False)
        ]

    def bounds(self) -> list[int]:
        """Where each part begins, and the end; each begins where the widest load may."""
        sizes = (-(-prod(shape) // _ALIGNMENT) * _ALIGNMENT for shape in self._shapes())
        return list(accumulate(sizes, initial=0))

    def _shapes(self) -> tuple[tuple[int, ...], ...]:
        return (
            (self.decodes, 4),
            (self.chunks, 4),
            (self.sequences, self.blocks),
            (self.sequences + 1,),
            (self.sequences,),
            (self.rows,),
        )


class _Tiles(NamedTuple):
    decodes: NDArray[np.int64]
    chunks: NDArray[np.int64]

    @classmethod
    def of(cls, spans: Spans) -> "_Tiles":
        """Cut spans into tiles, ``[n, 4]`` each."""
        counts = -(-spans.lengths // TILE_ROWS)
        sequences = np.arange(len(counts)).repeat(counts)
        ahead = (np.arange(len(sequences)) - (counts.cumsum() - counts)[sequences]) * TILE_ROWS
        first_rows = spans.lengths.cumsum() - spans.lengths
        columns = (
            sequences,
            first_rows[sequences] + ahead,
            np.minimum(spans.lengths[sequences] - ahead, TILE_ROWS),
            spans.starts[sequences] + ahead,
        )
        tiles, is_decode = np.stack(columns, axis=1), spans.lengths[sequences] == 1
        return cls(tiles[is_decode], tiles[~is_decode])


def _fill(parts: list[NDArray[np.int32]], spans: Spans, tiles: _Tiles, block_size: int) -> None:
    """Write a step into ``parts``, which may have room for more."""
    decodes, chunks, tables, first_rows, num_keys, slots = parts
    ends = spans.lengths.cumsum()
    _put(decodes, tiles.decodes, 0)
    _put(chunks, tiles.chunks, 0)
    width = min(tables.shape[1], spans.block_tables.shape[1])
    # What no row reads is a block too, for code that looks ahead.
    np.maximum(spans.block_tables[:, :width], 0, out=tables[: len(ends), :width])
    tables[: len(ends), width:] = 0
    tables[len(ends) :] = 0
    first_rows[0] = 0
    _put(first_rows[1:], ends, ends[-1] if len(ends) else 0)
    _put(num_keys, spans.starts + spans.lengths, 0)
    _put(slots, _row_slots(spans, block_size), -1)


def _put(part: NDArray[np.int32], values: NDArray[np.int64], rest: int) -> None:
    part[: len(values)] = values
    part[len(values) :] = rest


def _row_slots(spans: Spans, block_size: int) -> NDArray[np.int64]:
    of_row = np.arange(len(spans.lengths)).repeat(spans.lengths)
    first_rows = spans.lengths.cumsum() - spans.lengths
    positions = spans.starts[of_row] + np.arange(len(of_row)) - first_rows[of_row]
    blocks, places = np.divmod(positions, block_size)
    return spans.block_tables[of_row, blocks].astype(np.int64) * block_size + places
