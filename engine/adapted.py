"""Takes over what of a base model adapters can change: linear layers, embeddings and norms."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.engine.experts import adopt_parameters
from loraplex.engine.lora_linear import LoraBatch, LoraConv1D, LoraLinear


class AdaptedEmbedding(nn.Embedding):
    """An embedding with the table of another, which may be tied to a head still."""

    path: str
    batch: LoraBatch
    scale: float

    @classmethod
    def adopt(cls, base: nn.Embedding, path: str, batch: LoraBatch) -> Self:
        """Take over the table of ``base``, which is plain and lies at ``path`` of its model."""
        with torch.device("meta"):
            layer = cls(base.num_embeddings, base.embedding_dim)
        layer.weight = base.weight
        layer.path, layer.batch, layer.scale = path, batch, embedding_scale(base)
        return layer

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  nn.Embedding's own name
        """Return ``[..., width]`` for ids ``[...]``, which may be of tokens that an adapter added,
        for each row with its adapter."""
        y = functional.embedding(self.batch.base_ids(input, self.num_embeddings), self.weight)
        if self.scale != 1:
            y *= self.scale
        return self.batch.embedding(self.path, y, input, self.scale)


def embedding_scale(embedding: nn.Embedding) -> float:
    """Return what an embedding multiplies its table by (Gemma 3 has one that does), as PEFT reads
    it: rounded to the dtype of the table."""
    scale = getattr(embedding, "embed_scale", 1.0)
    return float(torch.as_tensor(scale).to(embedding.weight.dtype))


@torch.inference_mode()
def is_plain(embedding: nn.Embedding) -> bool:
    """True if it looks ids up in its table, scales what it finds, and does nothing else."""
    weight = embedding.weight
    ids = torch.tensor([[embedding.num_embeddings - 1, 0]], device=weight.device)
    expected = functional.embedding(ids, weight) * embedding_scale(embedding)
    try:
        return torch.equal(embedding(ids), expected)
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError):
        return False


@dataclass(frozen=True, slots=True)
class AdoptedWeights:
    """`BaseWeights` of a network that was adopted."""

    network: nn.Module

    def weight(self, path: str) -> Tensor:
        """See `BaseWeights.weight`."""
        module = self.network.get_submodule(path)
        if isinstance(module, LoraLinear | LoraConv1D):
            return module.base_weight()
        weight = module.weight
        assert isinstance(weight, Tensor), f"{path} has no weight"
        return weight

    def bias(self, path: str) -> Tensor | None:
        """See `BaseWeights.bias`."""
        bias = self.network.get_submodule(path).bias
        assert bias is None or isinstance(bias, Tensor), f"{path} has no bias"
        return bias

    def is_transposed(self, path: str) -> bool:
        """See `BaseWeights.is_transposed`."""
        return isinstance(self.network.get_submodule(path), LoraConv1D)


def adopt(network: nn.Module, shapes: BaseShapes, head_path: str) -> LoraBatch:
    """Make all that ``shapes`` lists compute each row with its adapter."""
    batch = LoraBatch(head_path, shapes.linears)
    _adopt_linears(network, shapes.linears, batch)
    for path in shapes.embeddings:
        base = network.get_submodule(path)
        assert isinstance(base, nn.Embedding), f"{path} is no embedding"
        _put(network, path, AdaptedEmbedding.adopt(base, path, batch))
    for path in shapes.biases.keys() - shapes.linears.keys():
        _adopt_norm(network.get_submodule(path), path, batch)
    adopt_parameters(network, shapes.parameters, batch)
    return batch


def _adopt_linears(
    network: nn.Module, shapes: Mapping[str, tuple[int, int]], batch: LoraBatch
) -> None:
    for path in shapes:
        base = network.get_submodule(path)
        if isinstance(base, nn.Linear):
            _put(network, path, LoraLinear.adopt(base, path, batch))
        else:
            _put(network, path, LoraConv1D.adopt(base, path, batch))


def _adopt_norm(norm: nn.Module, path: str, batch: LoraBatch) -> None:
    def change(_: nn.Module, __: tuple[object, ...], y: Tensor) -> Tensor:
        return batch.norm(path, y)

    norm.register_forward_hook(change)


def _put(network: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(network.get_submodule(parent), name, layer)
