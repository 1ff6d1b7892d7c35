"""The forward pass of a whole model of which all decoder layers are known.

Masks, caches and what else the model's own code prepares for layers is nothing that ours need.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from loraplex.engine import gate
from loraplex.engine.fused_parts import FusedNorm


class Ends(NamedTuple):
    """Paths of what a model begins and ends with."""

    embedding: str
    """Of tokens."""
    head: str
    """Makes the logits."""


class Tables(NamedTuple):
    """How rotary tables are made: by this module, of hidden states, positions and these."""

    module: nn.Module
    others: tuple[Any, ...]


class FusedOutput(NamedTuple):
    """What of a model's output is used."""

    logits: Tensor


@dataclass(frozen=True, slots=True)
class FusedModel:
    """Embeds tokens, runs the layers and computes the logits of some rows."""

    network: nn.Module
    ends: Ends
    tables: Sequence[Tables]
    layers: Sequence[tuple[nn.Module, int]]
    """With the place of each layer's tables."""
    norm: FusedNorm
    """Before the head."""

    def __call__(
        self,
        *,
        input_ids: Tensor,
        position_ids: Tensor,
        logits_to_keep: Tensor,
        step: gate.AttentionStep,
        use_cache: bool = False,  # noqa: ARG002  models of transformers would make a cache unless told
    ) -> FusedOutput:
        """Take and return what models of transformers do, as far as `logits_of` uses it: ids and
        positions are ``[1, rows]``, logits ``[1, n, vocab]``."""
        x: Tensor = self.network.get_submodule(self.ends.embedding)(input_ids)
        tables = [module(x, position_ids, *others) for module, others in self.tables]
        for layer, place in self.layers:
            x = layer(x, position_embeddings=tables[place], step=step)
        kept = self.norm(x.index_select(1, logits_to_keep))
        return FusedOutput(self.network.get_submodule(self.ends.head)(kept))


def find_model(
    network: nn.Module,
    ends: Ends,
    layers: Collection[nn.Module],
    used: Sequence[Tables | None],
    norms: Sequence[object],
) -> FusedModel | None:
    """Return what may be the forward pass of a model; whether it is, its logits tell.

    Args:
        network: the model.
        ends: of it.
        layers: all of them, in order; their forward passes, and those of their attention, are ours.
        used: how the rotary tables of each are made, as far as that is known.
        norms: forward passes of what lies beside the list of layers, if they are ours.
    """
    known = [tables for tables in used if tables is not None]
    if len(known) < len(layers) or len(norms) != 1 or not isinstance(norms[0], FusedNorm):
        return None
    tables = list(dict.fromkeys(known))
    placed = tuple((layer, tables.index(own)) for layer, own in zip(layers, known, strict=True))
    return FusedModel(network, ends, tuple(tables), placed, norms[0])
