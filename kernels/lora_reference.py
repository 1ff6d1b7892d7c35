"""The definition that every implementation of ``add_lora`` is tested against."""

from collections.abc import Sequence

import torch
from torch import Tensor

from loraplex.kernels.lora import LoraSegment


def add_lora_reference(y: Tensor, x: Tensor, segments: Sequence[LoraSegment]) -> Tensor:
    """Return ``y`` plus each segment's update, row by row, with sums in float64.

    Args:
        y: ``[rows, out]``; it is not changed.
        x: ``[rows, in]``.
        segments: as for ``add_lora``.

    Returns:
        ``[rows, out]``, float64, not rounded to the dtype of ``y``.
    """
    result = y.double()
    for segment in segments:
        for row in range(segment.start, segment.end):
            shrunk = torch.mv(segment.a.double(), x[row].double())  # [rank]
            result[row] += segment.scale * torch.mv(segment.b.double(), shrunk)
    return result
