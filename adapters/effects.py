"""What an adapter does at one module beside the low-rank update of a linear layer."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


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
            parts += [self.tokens.ids, self.tokens.rows]
        return [part for part in parts if part is not None]


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
