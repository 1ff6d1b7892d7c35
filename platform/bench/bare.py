"""The same model as others see it: with modules of its own, or without adapters."""

from copy import deepcopy
from dataclasses import replace

from torch import Tensor

from loraplex.engine.lora_linear import LoraConv1D, LoraLinear
from loraplex.engine.model import LoadedModel
from loraplex.kernels.segments import Slices


def with_own_modules(model: LoadedModel) -> LoadedModel:
    """The same model with modules of its own over the same weights, which are not copied."""
    network = model.network
    layers = [each for each in network.modules() if isinstance(each, LoraLinear | LoraConv1D)]
    held: list[object] = [*network.parameters(), *network.buffers(), model.lora]
    held += [layer.group.dense for layer in layers]
    return replace(model, network=deepcopy(network, {id(each): each for each in held}))


class _NoUpdates:
    """Of linear layers as they would be if no adapter could be served."""

    detour = None

    def linear(self, slices: Slices, y: Tensor, x: Tensor) -> Tensor:  # noqa: ARG002  an `Updates`
        return y


def without_lora(model: LoadedModel) -> LoadedModel:
    """The same model, whose linear layers know of no adapters."""
    bare = with_own_modules(model)
    for layer in bare.network.modules():
        if isinstance(layer, LoraLinear | LoraConv1D):
            layer.group.updates = _NoUpdates()
    return bare
