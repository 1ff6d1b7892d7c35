"""Linear layers that see one input are computed together, when the first of them is called.

Which do is seen when the model is loaded (`gate.RowProbe`): layers that are called one after the
other with the identical tensor, such as those that make queries, keys and values.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from loraplex.kernels.linear import PackedWeight, Packer, TorchWeight, pack_weights
from loraplex.kernels.segments import Slices

_TOLERANCE = 1e-2


Held = tuple[Tensor, Tensor]
"""An input, and what all layers of a group make of it."""


class Detour(Protocol):
    """Computes groups of a forward pass that does not go straight through."""

    def output(self, group: "LinearGroup", x: Tensor) -> Tensor:
        """Return what `LinearGroup.output` is to return, which leaves it to this."""
        ...


class Updates(Protocol):
    """What changes the outputs of linear layers for some rows of a step."""

    @property
    def detour(self) -> Detour | None:
        """Of the forward pass that runs; most have none."""
        ...

    def linear(self, slices: Slices, y: Tensor, x: Tensor) -> Tensor:
        """Return ``y [..., out]`` of the base, whose memory may be used, as it is to be for
        ``x [..., in]``; wider where rows have more columns than the base."""
        ...


@dataclass(frozen=True, slots=True)
class DenseWeights:
    """Weights of linear layers that see one input, side by side."""

    packed: PackedWeight
    bias: Tensor | None
    """``[out of all]``, or none of the layers has one."""

    @classmethod
    def of(cls, layers: Sequence[nn.Linear], packer: Packer | None = None) -> "DenseWeights":
        """Take the weights of ``layers``, packed by ``packer`` or as they are; of a layer alone,
        the tensor itself."""
        packed = pack_weights([layer.weight for layer in layers], packer)
        return cls(packed, _joined_bias(layers))

    @classmethod
    def of_transposed(
        cls, weight: Tensor, bias: Tensor | None, packer: Packer | None = None
    ) -> "DenseWeights":
        """Take the weight ``[in, out]`` and the bias of one layer, likewise."""
        return cls(pack_weights([weight.T], packer), bias)

    @property
    def is_packed(self) -> bool:
        """True where only a kernel can read them."""
        return not isinstance(self.packed, TorchWeight)

    def apply(self, x: Tensor) -> Tensor:
        """Return ``x [..., in] @ weight.T + bias``, ``[..., out of all]``."""
        rows = x.reshape(-1, x.shape[-1])
        y = self.packed.apply(rows, self.bias)
        return y.view(*x.shape[:-1], y.shape[-1])

    def weight(self, place: int) -> Tensor:
        """Return the weight ``[out, in]`` of one layer: a copy where it is packed."""
        return self.packed.unpack()[place]


def _joined_bias(layers: Sequence[nn.Linear]) -> Tensor | None:
    if len(layers) == 1:
        return layers[0].bias
    if all(layer.bias is None for layer in layers):
        return None
    return torch.cat(
        [
            layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias
            for layer in layers
        ]
    )


class LinearGroup:
    """Linear layers that see one input, or one layer alone.

    From the call of its first layer to that of its last a group holds what it computed: ``held``,
    which is None at all other times.
    """

    def __init__(self, dense: DenseWeights, slices: Slices, updates: Updates) -> None:
        """``slices`` are those of ``updates``, in the order in which the layers are called."""
        self.dense = dense
        self.slices = slices
        self.updates = updates
        self.held: Held | None = None

    def output(self, x: Tensor) -> Tensor:
        """Return what all layers make of ``x [..., in]``, side by side, for each row with its
        adapter."""
        detour = self.updates.detour
        if detour is not None:
            return detour.output(self, x)
        return self.updates.linear(self.slices, self.dense.apply(x), x)

    def output_of(self, place: int, x: Tensor) -> Tensor:
        """Return what the layer at ``place`` makes of ``x``: columns of what all make of it, which
        are computed for the first layer alone, unless others get another tensor."""
        if len(self.slices) == 1:
            return self.output(x)
        held = self.held
        if place and held is not None and x is held[0]:
            y = held[1]
            if place == len(self.slices) - 1:
                self.held = None
        else:
            y = self.output(x)
            if not place:
                self.held = x, y
        first = self.slices.offsets[place]
        return y[..., first : first + self.slices.widths[place]]


def are_alike(found: Tensor, expected: Tensor) -> bool:
    """True if logits differ by rounding alone, in whatever dtype: by little beside the largest."""
    return bool((found - expected).abs().max() <= _TOLERANCE * expected.abs().max())


@contextmanager
def columns_of_wider(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Have ``layers`` return columns of a wider tensor, as groups do, to see who minds."""

    def widen(_: nn.Module, __: tuple[object, ...], y: Tensor) -> Tensor:
        return torch.cat((y, y), dim=-1)[..., y.shape[-1] :]

    handles = [layer.register_forward_hook(widen) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
