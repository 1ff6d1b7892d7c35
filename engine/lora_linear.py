"""Linear layers that compute each row with its adapter."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from loraplex.engine.linear_group import DenseWeights, LinearGroup
from loraplex.engine.lora_batch import LoraBatch
from loraplex.kernels.linear import Packer
from loraplex.kernels.segments import Slices


class LoraLinear(nn.Linear):
    """A linear layer with the parameters of another, which may be tied to others still."""

    group: LinearGroup
    place: int
    """In its group."""

    @classmethod
    def adopt(
        cls,
        bases: Sequence[nn.Linear],
        slices: Slices,
        batch: LoraBatch,
        packer: Packer | None = None,
    ) -> list[Self]:
        """Take over the parameters of layers that see one input, in the order of their calls.

        Where they are packed, those that take their place have weights without data.
        """
        group = LinearGroup(DenseWeights.of(bases, packer), slices, batch)
        batch.groups.append(group)
        layers = []
        for place, base in enumerate(bases):
            with torch.device("meta"):
                layer = cls(base.in_features, base.out_features, bias=base.bias is not None)
            layer.group, layer.place = group, place
            if not group.dense.is_packed:
                alone = len(bases) == 1
                layer.weight = base.weight if alone else nn.Parameter(layer.base_weight())
            layer.bias = base.bias
            layer.requires_grad_(requires_grad=False)
            layers.append(layer)
        return layers

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  nn.Linear's own name
        """Return ``input [..., in] @ weight.T + bias``, for each row with its adapter."""
        return self.group.output_of(self.place, input)

    def base_weight(self) -> Tensor:
        """Return the weight, ``[out, in]``: a copy of it where it is packed."""
        return self.group.dense.weight(self.place)


class LoraConv1D(nn.Module):
    """The same for a layer that keeps its weight as ``[in, out]``, as GPT-2 has them."""

    weight: nn.Parameter
    """Without data where it is packed."""
    bias: nn.Parameter
    group: LinearGroup
    """Of this layer alone."""

    @classmethod
    def adopt(
        cls, base: nn.Module, slices: Slices, batch: LoraBatch, packer: Packer | None = None
    ) -> Self:
        """Take over the parameters of ``base``."""
        layer, weight = cls(), base.get_parameter("weight")
        layer.bias = base.get_parameter("bias")
        dense = DenseWeights.of_transposed(weight, layer.bias, packer)
        layer.group = LinearGroup(dense, slices, batch)
        layer.weight = nn.Parameter(weight.to("meta")) if dense.is_packed else weight
        return layer.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x [..., in] @ weight + bias``, for each row with its adapter."""
        return self.group.output(x)

    def base_weight(self) -> Tensor:
        """Return the weight, ``[out, in]``: a copy of it where it is packed."""
        return self.group.dense.weight(0)
