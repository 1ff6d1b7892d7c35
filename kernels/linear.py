"""Dense layers: ``y = x W^T + bias``, with weights in whatever layout reads fastest.

Layers that see one input are packed side by side into one: a call then computes all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional


class PackedWeight(Protocol):
    """Weights ``[out_i, in]`` of one dtype, side by side."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Outputs of each."""
        ...

    def apply(self, x: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
        """Return ``x @ weight.T + bias``, ``[rows, sum of out_i]``.

        Args:
            x: ``[rows, in]``, the dtype of the weights.
            bias: ``[sum of out_i]``, the same dtype, or none.
            out: takes the result, if given; its rows may be further apart than they are long.
        """
        ...

    def unpack(self) -> tuple[Tensor, ...]:
        """Return each weight as ``[out_i, in]``, the same bits."""
        ...


class Packer(Protocol):
    """One way to pack weights."""

    @property
    def name(self) -> str:
        """What logs call it."""
        ...

    def pack(self, weights: Sequence[Tensor]) -> PackedWeight:
        """Pack copies of weights ``[out_i, in]`` side by side.

        Raises:
            ValueError: they are of a kind that it does not pack.
        """
        ...


@dataclass(frozen=True, slots=True)
class TorchWeight:
    """Weights as torch has them."""

    weight: Tensor
    """``[sum of out_i, in]``."""
    widths: tuple[int, ...]

    def apply(self, x: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
        """See `PackedWeight.apply`."""
        y = functional.linear(x, self.weight, bias)
        return y if out is None else out.copy_(y)

    def unpack(self) -> tuple[Tensor, ...]:
        """See `PackedWeight.unpack`; these are views."""
        return torch.split(self.weight, list(self.widths))


class TorchPacker:
    """Leaves weights as torch has them; a single one is not copied."""

    name = "torch"

    def pack(self, weights: Sequence[Tensor]) -> TorchWeight:
        """See `Packer.pack`."""
        weight = weights[0].detach() if len(weights) == 1 else torch.cat(tuple(weights)).detach()
        return TorchWeight(weight, widths_of(weights))


def widths_of(weights: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the number of outputs of each weight ``[out_i, in]``."""
    return tuple(weight.shape[0] for weight in weights)


def pack_weights(weights: Sequence[Tensor], packer: Packer | None = None) -> PackedWeight:
    """Pack weights ``[out_i, in]`` side by side, by ``packer`` or as torch has them.

    Raises:
        ValueError: they are of a kind that ``packer`` does not pack.
    """
    return (packer or TorchPacker()).pack(weights)
