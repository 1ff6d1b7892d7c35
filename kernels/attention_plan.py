"""What attention needs to know of a step: made once, used by every layer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Window = int | None
"""How many positions a token sees, itself included; None sees all before it."""

_SMALLEST_BUCKET = 64


class Span(NamedTuple):
    """Rows of one sequence in a step: its positions ``[start, start + length)``."""

    start: int
    length: int
    block_table: Sequence[int]
    """Blocks of the sequence, covering all positions below ``start + length``."""


class KvLayout(NamedTuple):
    """Shape of the pool of KV blocks.  After the last block lies one more that is always zero."""

    num_blocks: int
    block_size: int

    @property
    def null_slot(self) -> int:
        """Slot that padding reads.

        It must be zero: what a softmax weight of 0 meets in a slot of another sequence may be
        infinite, and 0 * inf is not 0.
        """
        return self.num_blocks * self.block_size


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Single rows that are attended together, padded to ``keys`` positions."""

    rows: Tensor
    """``[n]`` int64, rows of the step."""
    slots: Tensor
    """``[n * keys]`` int64, the null slot where a sequence is shorter."""
    mask: Tensor
    """``[n, 1, 1, keys]``, 0 or -inf, added to the scores."""


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Consecutive rows ``[start, end)`` of one sequence, attended on their own."""

    start: int
    end: int
    slots: Tensor | None
    """``[keys]`` int64; None where the chunk begins its sequence and sees its own rows only."""
    mask: Tensor | None
    """``[end - start, keys]``, 0 or -inf, added to the scores; None is plain causal."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Work of all layers that share a window: every row of the step, in exactly one entry."""

    decodes: tuple[DecodeGroup, ...]
    chunks: tuple[PrefillChunk, ...]


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """All of a step that does not depend on the layer."""

    slot_mapping: Tensor
    """``[rows]`` int64, where the keys and values of each row are written."""
    plans: dict[Window, AttentionPlan]


def plan_attention(
    spans: Sequence[Span],
    layout: KvLayout,
    windows: Iterable[Window],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> AttentionMetadata:
    """Lay out the attention of a step whose rows are those of ``spans``, in order.

    Args:
        spans: one for each sequence; together they hold all rows of the step.
        layout: of the pool that the block tables point into.
        windows: of the model's layers.
        dtype: of queries, keys and values; masks have it too.
        device: of the result.
    """
    slots = [_slots(span, span.start, span.start + span.length, layout) for span in spans]
    builder = _PlanBuilder(spans, layout, dtype, device)
    return AttentionMetadata(
        slot_mapping=torch.from_numpy(np.concatenate(slots)).to(device),
        plans={window: builder.plan(window) for window in windows},
    )


def _slots(span: Span, first: int, end: int, layout: KvLayout) -> NDArray[np.int64]:
    """Return the slots of positions ``[first, end)``."""
    positions = np.arange(first, end)
    table = np.asarray(span.block_table, dtype=np.int64)
    blocks = table[positions // layout.block_size]
    return blocks * layout.block_size + positions % layout.block_size


class _PlanBuilder:
    def __init__(
        self, spans: Sequence[Span], layout: KvLayout, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._layout = layout
        self._dtype = dtype
        self._device = device
        lengths = [span.length for span in spans]
        starts = [0, *np.cumsum(lengths).tolist()]
        self._decodes = [(row, s) for row, s in zip(starts, spans, strict=False) if s.length == 1]
        self._chunks = [(row, s) for row, s in zip(starts, spans, strict=False) if s.length > 1]

    def plan(self, window: Window) -> AttentionPlan:
        # Sequences of about equal length share a group, so that padding never doubles the work.
        groups: dict[int, list[tuple[int, Span]]] = {}
        for row, span in self._decodes:
            keys = span.start + 1 - _first_key(span.start, window)
            bucket = (max(keys, _SMALLEST_BUCKET) - 1).bit_length()
            groups.setdefault(bucket, []).append((row, span))
        return AttentionPlan(
            decodes=tuple(self._decode_group(group, window) for group in groups.values()),
            chunks=tuple(self._chunk(row, span, window) for row, span in self._chunks),
        )

    def _decode_group(self, members: list[tuple[int, Span]], window: Window) -> DecodeGroup:
        block_size = self._layout.block_size
        ends = np.array([span.start + 1 for _, span in members])[:, None]
        firsts = np.array([_first_key(span.start, window) for _, span in members])[:, None]
        positions = firsts + np.arange((ends - firsts).max())  # [n, keys]
        valid = positions < ends
        tables = np.zeros((len(members), max(len(s.block_table) for _, s in members)), np.int64)
        for table, (_, span) in zip(tables, members, strict=True):
            table[: len(span.block_table)] = span.block_table
        indices = np.where(valid, positions // block_size, 0)
        blocks = np.take_along_axis(tables, indices, axis=1)
        slots = blocks * block_size + positions % block_size
        slots[~valid] = self._layout.null_slot
        return DecodeGroup(
            rows=self._to_device(np.array([row for row, _ in members])),
            slots=self._to_device(slots.reshape(-1)),
            mask=self._mask(valid)[:, None, None, :],
        )

    def _chunk(self, row: int, span: Span, window: Window) -> PrefillChunk:
        queries = np.arange(span.start, span.start + span.length)
        first = _first_key(span.start, window)
        keys = np.arange(first, span.start + span.length)
        visible = keys <= queries[:, None]
        if window is not None:
            visible &= keys > queries[:, None] - window
        begins = span.start == 0
        plain = begins and (window is None or span.length <= window)
        slots = None if begins else _slots(span, first, span.start + span.length, self._layout)
        return PrefillChunk(
            start=row,
            end=row + span.length,
            slots=None if slots is None else self._to_device(slots),
            mask=None if plain else self._mask(visible),
        )

    def _mask(self, visible: NDArray[np.bool_]) -> Tensor:
        mask = np.where(visible, np.float32(0), np.float32(-np.inf))
        return torch.from_numpy(mask).to(self._device, self._dtype)

    def _to_device(self, indices: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(indices).to(self._device)


def _first_key(position: int, window: Window) -> int:
    return 0 if window is None else max(0, position - window + 1)
