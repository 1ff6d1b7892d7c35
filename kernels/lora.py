"""Low-rank updates for a batch whose rows belong to many adapters."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class LoraSegment(NamedTuple):
    """Rows ``[start, end)`` of a batch, and one adapter's weights for the layer at hand."""

    start: int
    end: int
    a: Tensor
    """``[rank, in]``."""
    b: Tensor
    """``[out, rank]``."""
    scale: float


def add_lora(y: Tensor, x: Tensor, segments: Sequence[LoraSegment]) -> None:
    """Add each segment's low-rank update to its rows of ``y``, in place.

    For every segment and every row ``i`` in ``[start, end)``::

        h[i, r]  = sum_k x[i, k] * a[r, k]
        y[i, o] += scale * sum_r h[i, r] * b[o, r]

    Segments do not overlap; rows outside all segments keep their bits.  Sums run in float32
    whatever the dtype, and each update is rounded once, when it is added to ``y``.

    Args:
        y: ``[rows, out]``, float32, bfloat16 or float16.
        x: ``[rows, in]``, same dtype as ``y``.
        segments: weights in the dtype of ``y``, each at its true rank, read once.
    """
    for start, end, a, b, scale in segments:
        # `float` is free in float32.  In bfloat16 it is what keeps the sums in float32, and on
        # CPUs it is faster than a bfloat16 product of so few rows.
        shrunk = x[start:end].float() @ a.float().T
        y[start:end].add_(shrunk @ b.float().T, alpha=scale)
