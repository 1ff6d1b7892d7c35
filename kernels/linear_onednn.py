"""Dense layers on CPUs with weights in oneDNN's own layout, which few rows read much faster."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from loraplex.kernels.linear import widths_of

_ROWS = 64
"""Rows of a call are at most this, or a multiple of it: oneDNN makes new code for each number of
rows, which takes milliseconds, so there must be few."""


@dataclass(frozen=True, slots=True)
class OneDnnWeight:
    """Weights packed by oneDNN."""

    packed: Tensor
    """``[sum of out_i, in]`` in a layout that only oneDNN reads."""
    widths: tuple[int, ...]

    def apply(self, x: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
        """See `PackedWeight.apply`."""
        num_whole = x.shape[0] // _ROWS * _ROWS
        if num_whole in (0, x.shape[0]):
            y = self._apply(x, bias)
            return y if out is None else out.copy_(y)
        parts = [self._apply(x[:num_whole], bias), self._apply(x[num_whole:], bias)]
        return torch.cat(parts, out=out)

    def unpack(self) -> tuple[Tensor, ...]:
        """See `PackedWeight.unpack`; these are copies."""
        return torch.split(self.packed.to_dense(), list(self.widths))

    def _apply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001  torch has no public name
            x, self.packed, bias, "none", [], ""
        )
        return y


class OneDnnPacker:
    """Packs for oneDNN, by private names of torch."""

    name = "onednn"

    @classmethod
    def of(cls, dtype: torch.dtype) -> Self | None:
        """Return one for weights of this dtype; None where this torch or CPU has none, or one that
        computes something else."""
        packer = cls()
        if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]  # torch has no types here
            return None
        generator = torch.Generator().manual_seed(0)
        weight, bias, x = (
            torch.randn(shape, generator=generator).to(dtype)
            for shape in ((24, 40), (24,), (3, 40))
        )
        try:
            packed = packer.pack([weight])
            y, (unpacked,) = packed.apply(x, bias), packed.unpack()
        except (AttributeError, RuntimeError, TypeError):  # a torch that has other private names
            return None
        expected = functional.linear(x.float(), weight.float(), bias.float())
        is_right = (
            y.shape == expected.shape
            and y.dtype is dtype
            and torch.allclose(y.float(), expected, rtol=0.02, atol=0.1)
            and torch.equal(unpacked, weight)
        )
        return packer if is_right else None

    def pack(self, weights: Sequence[Tensor]) -> OneDnnWeight:
        """See `Packer.pack`."""
        weight = weights[0] if len(weights) == 1 else torch.cat(tuple(weights))
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), 8)  # noqa: SLF001  as above
        return OneDnnWeight(packed, widths_of(weights))
