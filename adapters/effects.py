"""What an adapter does at one module of the base model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from loraplex.adapters.experts import ExpertPairs

Copy = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class LoraPair:
    """Low-rank update of a linear layer: y += scale · B (A x)."""

    a: Tensor
    """[rank, in], contiguous."""
    b: Tensor
    """[out, rank], contiguous; for the compiled kernel of CPUs transposed in memory."""
    scale: float
    """Kept apart from B, so that B stays the bytes that were uploaded; applied in expand."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Low-rank update of an embedding: y += scale · B a[id]."""

    a: Tensor
    """[rows, rank], contiguous: PEFT's `lora_embedding_A` transposed, so that a token reads one
    row."""
    b: Tensor
    """[width, rank]."""
    scale: float


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Rows of an embedding or a head that the adapter has for some tokens."""

    ids: Tensor
    """[n] int64, rising."""
    rows: Tensor
    """[n, width], what those tokens have in place of the base's rows."""
    bias: Tensor | None = None
    """[n], added to what a head makes of them."""


@dataclass(frozen=True, slots=True)
class ModuleEffect:
    """What becomes of one module's output y for rows of the adapter, in the order of the fields.

    Where a linear layer has a low-rank update too, that comes first.
    """

    weight: Tensor | None = None
    """[out, in] or [rows, width]: computes y in place of the base's weight."""
    bias: Tensor | None = None
    """[out], that of `weight`."""
    lookup: Lookup | None = None
    gain: Tensor | None = None
    """[out] float32: y is multiplied by it (DoRA's magnitude over the norm)."""
    offset: Tensor | None = None
    """[out] float32: added to y (trained biases)."""
    tokens: TokenRows | None = None

    def tensors(self) -> list[Tensor]:
        """All that it holds."""
        parts = [self.weight, self.bias, self.gain, self.offset]
        if self.lookup is not None:
            parts += [self.lookup.a, self.lookup.b]
        if self.tokens is not None:
            parts += [self.tokens.ids, self.tokens.rows, self.tokens.bias]
        return [part for part in parts if part is not None]


@dataclass(frozen=True, slots=True)
class Assembled:
    """All that an adapter does at one module."""

    pair: LoraPair | None
    effect: ModuleEffect | None
    experts: ExpertPairs | None = None

    def tensors(self) -> list[Tensor]:
        """All that it holds; modules may share some."""
        low_rank = [of for of in (self.pair, self.experts) if of is not None]
        parts = [part for of in low_rank for part in (of.a, of.b)]
        return parts + (self.effect.tensors() if self.effect else [])

    def copied(self, weight: Copy, exact: Copy) -> "Assembled":
        """Return the same made of other tensors: ``exact`` is for those whose dtype is not that of
        the weights."""
        pair, effect, experts = self.pair, self.effect, self.experts
        return Assembled(
            pair and replace(pair, a=weight(pair.a), b=weight(pair.b)),
            effect and _copied(effect, weight, exact),
            experts and replace(experts, a=weight(experts.a), b=weight(experts.b)),
        )


def _copied(effect: ModuleEffect, weight: Copy, exact: Copy) -> ModuleEffect:
    lookup, tokens = effect.lookup, effect.tokens
    return ModuleEffect(
        weight=_optional(weight, effect.weight),
        bias=_optional(weight, effect.bias),
        lookup=lookup and replace(lookup, a=weight(lookup.a), b=weight(lookup.b)),
        gain=_optional(exact, effect.gain),
        offset=_optional(exact, effect.offset),
        tokens=tokens
        and TokenRows(exact(tokens.ids), weight(tokens.rows), _optional(weight, tokens.bias)),
    )


def _optional(copy: Copy, tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else copy(tensor)


class BaseWeights(Protocol):
    """Weights of the base model, as it serves them."""

    def weight(self, path: str) -> Tensor:
        """Weight of a linear layer, ``[out, in]``, or of an embedding, ``[rows, width]``.

        It may be a copy as large as the layer, so keep none.
        """
        ...

    def bias(self, path: str) -> Tensor | None:
        """What a module adds to its output last, ``[out]``."""
        ...

    def is_transposed(self, path: str) -> bool:
        """True for a linear layer that keeps, and saves, its weight as ``[in, out]``."""
        ...
