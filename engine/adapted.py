"""Takes over what of a base model adapters can change: linear layers, embeddings and norms."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.engine.experts import adopt_parameters
from loraplex.engine.lora_batch import LoraBatch
from loraplex.engine.lora_linear import LoraConv1D, LoraLinear
from loraplex.kernels.linear import Packer


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


def linear_weights(network: nn.Module, shapes: BaseShapes, head_path: str) -> list[Tensor]:
    """Return the weights ``[out, in]`` that `adopt` would pack, but for the head's."""
    linears = [network.get_submodule(path) for path in shapes.linears if path != head_path]
    return [
        each.get_parameter("weight")
        if isinstance(each, nn.Linear)
        else each.get_parameter("weight").T
        for each in linears
    ]


def computed_apart(network: nn.Module) -> list[str]:
    """Return the paths of modules of an adopted network that multiply rows with parameters of their
    own by themselves, such as experts and routers."""
    return [
        path
        for path, module in network.named_modules()
        if not isinstance(module, LoraLinear | LoraConv1D | nn.Embedding)
        and any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))
    ]


def adopt(
    network: nn.Module,
    shapes: BaseShapes,
    head_path: str,
    groups: Sequence[Sequence[str]] = (),
    packer: Packer | None = None,
) -> LoraBatch:
    """Make all that ``shapes`` lists compute each row with its adapter; linear layers of a group
    see one input, and weights of such layers are packed by ``packer``, if there is one."""
    batch = LoraBatch(head_path, shapes.linears)
    grouped = {path for group in groups for path in group}
    alone = [(path,) for path in shapes.linears if path not in grouped]
    for paths in (*groups, *alone):
        _adopt_linears(network, paths, batch, packer)
    for path in shapes.embeddings:
        base = network.get_submodule(path)
        assert isinstance(base, nn.Embedding), f"{path} is no embedding"
        _put(network, path, AdaptedEmbedding.adopt(base, path, batch))
    for path in shapes.biases.keys() - shapes.linears.keys():
        _adopt_norm(network.get_submodule(path), path, batch)
    adopt_parameters(network, shapes.parameters, batch)
    return batch


def _adopt_linears(
    network: nn.Module, paths: Sequence[str], batch: LoraBatch, packer: Packer | None
) -> None:
    bases = [network.get_submodule(path) for path in paths]
    linears = [base for base in bases if isinstance(base, nn.Linear)]
    if len(linears) == len(bases):
        slices = batch.slices(paths, linears[0].weight.device)
        for path, layer in zip(
            paths, LoraLinear.adopt(linears, slices, batch, packer), strict=True
        ):
            _put(network, path, layer)
        return
    for path, base in zip(paths, bases, strict=True):
        slices = batch.slices([path], base.get_parameter("weight").device)
        _put(network, path, LoraConv1D.adopt(base, slices, batch, packer))


def _adopt_norm(norm: nn.Module, path: str, batch: LoraBatch) -> None:
    def change(_: nn.Module, __: tuple[object, ...], y: Tensor) -> Tensor:
        return batch.norm(path, y)

    norm.register_forward_hook(change)


def _put(network: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(network.get_submodule(parent), name, layer)
