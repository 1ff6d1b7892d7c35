"""Low-rank updates for a batch whose rows belong to many adapters."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from loraplex.kernels.lora_cpu import CpuModuleSegments
from loraplex.kernels.segments import (
    ModuleSegments,
    Slices,
    TableRows,
    lora_table,
    step_segments,
)


class LoraSegment(NamedTuple):
    """Rows ``[start, end)`` of a batch, and one adapter's weights for the layer at hand."""

    start: int
    end: int
    a: Tensor
    """``[rank, in]``."""
    b: Tensor
    """``[out, rank]``."""
    scale: float


class PlainSegments(list[LoraSegment]):
    """Segments that torch computes on any device: what a compiled kernel is compared with."""


Segments = Sequence[LoraSegment] | ModuleSegments | CpuModuleSegments
"""What one module of a step adds."""


def add_lora(y: Tensor, x: Tensor, segments: Segments) -> None:
    """Add each segment's low-rank update to its rows of ``y``, in place.

    For every segment and every row ``i`` in ``[start, end)``::

        h[i, r] = sum_k x[i, k] * a[r, k]
        y[i, o] = gain[o] * (y[i, o] + scale * sum_r h[i, r] * b[o, r]) + offset[o]

    Gains and offsets come with tables alone; without them they are 1 and 0.  Several modules that
    see one ``x`` may share a ``y``, each with columns of its own.

    Segments do not overlap; rows outside all segments keep their bits.  Sums run in float32
    whatever the dtype, and each output is rounded once, when it is written to ``y``.

    Args:
        y: ``[rows, out]``, float32, bfloat16 or float16.
        x: ``[rows, in]``, same dtype as ``y``.
        segments: weights in the dtype of ``y``, each at its true rank, read once; or, made once
            for all modules of a step, where they lie: that is what compiled kernels read.

    Raises:
        ValueError: what a compiled kernel would read wrong or out of bounds.
    """
    if isinstance(segments, CpuModuleSegments):
        segments.add(y, x)
        return
    if not isinstance(segments, ModuleSegments):
        if not y.is_cuda or isinstance(segments, PlainSegments):
            _add_lora_torch(y, x, segments)
            return
        located = _locate(y, x, segments)
        if located is None:
            return
        segments = located
    from loraplex.kernels.lora_triton import add_lora_triton  # noqa: PLC0415  CPUs need no Triton

    add_lora_triton(y, x, segments)


def _add_lora_torch(y: Tensor, x: Tensor, segments: Sequence[LoraSegment]) -> None:
    for start, end, a, b, scale in segments:
        # `float` is free in float32.  In bfloat16 it is what keeps the sums in float32, and on
        # CPUs it is faster than a bfloat16 product of so few rows.
        shrunk = x[start:end].float() @ a.float().T
        y[start:end].add_(shrunk @ b.float().T, alpha=scale)


def _locate(y: Tensor, x: Tensor, segments: Sequence[LoraSegment]) -> ModuleSegments | None:
    """Note where weights lie that come without a table, as if the model had one module."""
    shape = (y.shape[1], x.shape[1])
    rows = [
        TableRows(
            segment.start,
            segment.end,
            lora_table([segment], [shape], dtype=y.dtype, device=y.device),
        )
        for segment in segments
    ]
    slices = Slices.of([0], [shape[0]], shape[1], y.device)
    return step_segments(rows).at(slices) if rows else None
