"""Takes over what of a base model adapters can change: linear layers, embeddings and norms."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.engine.lora_linear import LoraBatch, LoraConv1D, LoraLinear


class AdaptedEmbedding(nn.Module):
    """An embedding that reads each row with its adapter."""

    def __init__(self, base: nn.Embedding, path: str, batch: LoraBatch) -> None:
        """Take over ``base``, which lies at ``path`` of its model."""
        super().__init__()
        self.base = base
        self.path, self.batch = path, batch
        self.scale = embedding_scale(base)

    @property
    def weight(self) -> Tensor:
        """The base's table ``[rows, width]``; some models ask for its dtype or device."""
        return self.base.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return ``[..., width]`` for ``ids [...]``, which may be tokens that an adapter added."""
        y: Tensor = self.base(self.batch.base_ids(ids, self.base.num_embeddings))
        return self.batch.embedding(self.path, y, ids, self.scale)


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
    expected = nn.functional.embedding(ids, weight) * embedding_scale(embedding)
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


def adopt(network: nn.Module, shapes: BaseShapes, head_path: str) -> LoraBatch:
    """Make all that ``shapes`` lists compute each row with its adapter."""
    batch = LoraBatch(head_path, shapes.linears)
    _adopt_linears(network, shapes.linears, batch)
    for path in shapes.embeddings:
        base = network.get_submodule(path)
        assert isinstance(base, nn.Embedding), f"{path} is no embedding"
        _put(network, path, AdaptedEmbedding(base, path, batch))
    for path in shapes.biases.keys() - shapes.linears.keys():
        _adopt_norm(network.get_submodule(path), path, batch)
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
