"""What attention by torch needs to know of a step: made once, used by every layer."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loraplex.kernels.attention import KvLayout, Spans, Window

_SMALLEST_BUCKET = 64


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Single rows that are attended together, padded to ``keys`` positions."""

    rows: Tensor
    """``[n]`` int64, rows of the step."""
    slots: Tensor
    """``[n * keys]`` int32, since there are many; the null slot where a sequence is shorter."""
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
    spans: Spans,
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
    builder = _PlanBuilder(spans, layout, dtype, device)
    return AttentionMetadata(
        slot_mapping=torch.from_numpy(builder.slot_mapping()).to(device),
        plans={window: builder.plan(window) for window in windows},
    )


class _PlanBuilder:
    def __init__(
        self, spans: Spans, layout: KvLayout, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._spans = spans
        self._layout = layout
        self._dtype = dtype
        self._device = device
        self._first_rows = spans.lengths.cumsum() - spans.lengths
        is_single = spans.lengths == 1
        self._decodes = is_single.nonzero()[0]
        self._chunks: list[int] = (~is_single).nonzero()[0].tolist()

    def slot_mapping(self) -> NDArray[np.int64]:
        """Where each row's keys and values are written."""
        spans, block_size = self._spans, self._layout.block_size
        of_row = np.arange(len(spans.lengths)).repeat(spans.lengths)
        ahead = np.arange(len(of_row)) - self._first_rows[of_row]
        blocks, offsets = np.divmod(spans.starts[of_row] + ahead, block_size)
        slots = spans.block_tables[of_row, blocks].astype(np.int64)
        slots *= block_size
        slots += offsets
        return slots

    def plan(self, window: Window) -> AttentionPlan:
        # Sequences of about equal length share a group, so that padding never doubles the work.
        ends = self._spans.starts[self._decodes] + 1
        keys = ends if window is None else np.minimum(ends, window)
        buckets = np.frexp(np.maximum(keys, _SMALLEST_BUCKET) - 1)[1]
        groups = (self._decodes[buckets == bucket] for bucket in np.unique(buckets))
        return AttentionPlan(
            decodes=tuple(self._decode_group(group, window) for group in groups),
            chunks=tuple(self._chunk(index, window) for index in self._chunks),
        )

    def _decode_group(self, members: NDArray[np.intp], window: Window) -> DecodeGroup:
        """Whole blocks are laid out, from the one that holds the first key on."""
        block_size, tables = self._layout.block_size, self._spans.block_tables
        ends = self._spans.starts[members] + 1
        firsts = np.zeros_like(ends) if window is None else np.maximum(ends - window, 0)
        first_blocks = firsts // block_size
        skipped = first_blocks * block_size
        num_keys = int((ends - skipped).max())
        columns = first_blocks[:, None] + np.arange(-(-num_keys // block_size))
        columns.clip(max=tables.shape[1] - 1, out=columns)
        first_slots = tables[members[:, None], columns] * np.int32(block_size)
        of_block = np.arange(block_size, dtype=np.int32)
        slots = (first_slots[:, :, None] + of_block).reshape(len(members), -1)
        slots = np.ascontiguousarray(slots[:, :num_keys])
        places = np.arange(num_keys)
        is_hidden = places >= (ends - skipped)[:, None]
        if window is not None:
            is_hidden |= places < (firsts - skipped)[:, None]
        np.putmask(slots, is_hidden, self._layout.null_slot)
        return DecodeGroup(
            rows=self._to_device(self._first_rows[members]),
            slots=self._to_device(slots.reshape(-1)),
            mask=self._mask(is_hidden)[:, None, None, :],
        )

    def _chunk(self, index: int, window: Window) -> PrefillChunk:
        spans, row = self._spans, int(self._first_rows[index])
        start, length = int(spans.starts[index]), int(spans.lengths[index])
        queries = np.arange(start, start + length)
        first = 0 if window is None else max(0, start - window + 1)
        keys = np.arange(first, start + length)
        is_hidden = keys > queries[:, None]
        if window is not None:
            is_hidden |= keys <= queries[:, None] - window
        plain = start == 0 and (window is None or length <= window)
        slots = None
        if start > 0:
            blocks, offsets = np.divmod(keys, self._layout.block_size)
            table = spans.block_tables[index].astype(np.int64)
            slots = self._to_device(table[blocks] * self._layout.block_size + offsets)
        return PrefillChunk(
            start=row,
            end=row + length,
            slots=slots,
            mask=None if plain else self._mask(is_hidden),
        )

    def _mask(self, is_hidden: NDArray[np.bool_]) -> Tensor:
        mask = np.zeros(is_hidden.shape, np.float32)
        np.putmask(mask, is_hidden, -np.inf)
        return torch.from_numpy(mask).to(self._device, self._dtype)

    def _to_device(self, indices: NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(indices).to(self._device)
