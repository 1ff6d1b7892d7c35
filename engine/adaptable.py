"""Which modules of a network adapters can change, as far as that can be told without running it."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self, TypeVar

from torch import nn
from transformers.pytorch_utils import Conv1D

from loraplex.engine.adapted import is_plain

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Adaptable:
    """Modules by path, in the fields of `BaseShapes`."""

    linears: Mapping[str, tuple[int, int]]
    """(out, in) of what PEFT counts as linear; Conv1D keeps its weight as [in, out]."""
    embeddings: Mapping[str, tuple[int, int]]
    """(rows, width) of embeddings that are no more than a table, perhaps with a scale."""
    biases: Mapping[str, int]
    """Length of each bias that a linear layer or a norm adds to its output last."""

    @classmethod
    def of(cls, network: nn.Module) -> Self:
        """Look at all modules of a network."""
        linears: dict[str, tuple[int, int]] = {}
        embeddings: dict[str, tuple[int, int]] = {}
        biases: dict[str, int] = {}
        for path, module in network.named_modules():
            if type(module) is nn.Linear:
                linears[path] = (module.out_features, module.in_features)
            elif type(module) is Conv1D:
                linears[path] = (module.nf, module.nx)
            elif isinstance(module, nn.Embedding) and is_plain(module):
                embeddings[path] = (module.num_embeddings, module.embedding_dim)
            bias = getattr(module, "bias", None)
            if isinstance(bias, nn.Parameter) and (
                path in linears or isinstance(module, nn.LayerNorm)
            ):
                biases[path] = bias.shape[0]
        return cls(
            MappingProxyType(linears), MappingProxyType(embeddings), MappingProxyType(biases)
        )

    @property
    def paths(self) -> Set[str]:
        """Of all of them."""
        return self.linears.keys() | self.embeddings.keys() | self.biases.keys()

    def among(self, paths: Set[str]) -> Self:
        """Those of ``paths`` alone; linear layers in the order of their paths."""
        return type(self)(
            linears=MappingProxyType(
                {p: self.linears[p] for p in sorted(paths & self.linears.keys())}
            ),
            embeddings=_among(self.embeddings, paths),
            biases=_among(self.biases, paths),
        )


def _among(found: Mapping[str, T], paths: Set[str]) -> Mapping[str, T]:
    return MappingProxyType({path: value for path, value in found.items() if path in paths})
