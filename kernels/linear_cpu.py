"""Dense layers on CPUs with weights in oneDNN's own layout, which few rows read much faster."""

from dataclasses import dataclass

import torch
from torch import Tensor

_ROWS = 64
"""Rows of a call are at most this, or a multiple of it: oneDNN makes new code for each number of
rows, which takes milliseconds, so there must be few."""


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """The weight of one linear layer, float32."""

    packed: Tensor
    """``[out, in]`` in a layout that only oneDNN reads."""

    def apply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``x @ weight.T + bias``.

        Args:
            x: ``[rows, in]`` float32.
            bias: ``[out]`` float32, or none.
        """
        num_whole = x.shape[0] // _ROWS * _ROWS
        if num_whole in (0, x.shape[0]):
            return self._apply(x, bias)
        return torch.cat([self._apply(x[:num_whole], bias), self._apply(x[num_whole:], bias)])

    def unpack(self) -> Tensor:
        """Return a copy as ``[out, in]`` in the usual layout, the same bits."""
        return self.packed.to_dense()

    def _apply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001  torch has no public name
            x, self.packed, bias, "none", [], ""
        )
        return y


def pack_weight(weight: Tensor) -> PackedWeight | None:
    """Pack ``weight [out, in]``; None where that is not possible or brings nothing.

    Only float32 gains: in bfloat16 torch's own path is as fast.
    """
    usable = weight.device.type == "cpu" and weight.dtype is torch.float32
    if not usable or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]  # torch has no types here
        return None
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 8)  # noqa: SLF001  as above
        probe = PackedWeight(packed).apply(torch.zeros(1, weight.shape[1]), None)
    except (AttributeError, RuntimeError):  # a torch that has other private names
        return None
    return PackedWeight(packed) if probe.shape == (1, weight.shape[0]) else None
