"""Attention of a packed batch over keys and values that lie in blocks: the port, and its values."""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Window = int | None
"""How many positions a token sees, itself included; None sees all before it."""

Metadata = TypeVar("Metadata")
"""What an implementation lays out of a step; it does not depend on the layer."""


class Span(NamedTuple):
    """Rows of one sequence in a step: its positions ``[start, start + length)``."""

    start: int
    length: int
    block_table: Sequence[int]
    """Blocks of the sequence, covering all positions below ``start + length``."""


class Spans(NamedTuple):
    """The same for all sequences of a step, as arrays."""

    starts: NDArray[np.int64]
    """``[n]``, 0 or more."""
    lengths: NDArray[np.int64]
    """``[n]``, 1 or more."""
    block_tables: NDArray[np.int32]
    """``[n, blocks]``; beyond a sequence's own blocks any block, or -1."""

    @classmethod
    def of(cls, spans: Sequence[Span]) -> Self:
        """Lay out single spans."""
        width = max((len(span.block_table) for span in spans), default=0)
        tables = np.zeros((len(spans), width), np.int32)
        for table, span in zip(tables, spans, strict=True):
            table[: len(span.block_table)] = span.block_table
        starts, lengths = (np.array([span[i] for span in spans], np.int64) for i in (0, 1))
        return cls(starts, lengths, tables)


class KvLayout(NamedTuple):
    """Shape of the pool of KV blocks.  After the last block lies one more that is always zero."""

    num_blocks: int
    block_size: int

    @property
    def null_slot(self) -> int:
        """Slot that padding reads.

        It must be zero: what a softmax weight of 0 meets in a slot of another sequence may be
        infinite, and 0 * inf is not 0.
        """
        return self.num_blocks * self.block_size


class Scoring(NamedTuple):
    """How one layer turns products of queries and keys into scores."""

    scaling: float
    """Factor of the products."""
    window: Window = None
    softcap: float | None = None
    """Bound of the scaled products, as Gemma 2 has it: ``softcap * tanh(score / softcap)``."""


class LayerForm(Protocol):
    """What the choice of an implementation depends on, of one layer."""

    @property
    def window(self) -> Window:
        """As ``Scoring`` has it."""
        ...

    @property
    def key_dim(self) -> int:
        """Of one head."""
        ...

    @property
    def value_dim(self) -> int:
        """Of one head."""
        ...

    @property
    def softcap(self) -> float | None:
        """As ``Scoring`` has it."""
        ...

    @property
    def group(self) -> int:
        """Heads that share keys and values."""
        ...


class KvCache(NamedTuple):
    """Keys and values of one layer, for all sequences; the block after the last is zero."""

    keys: Tensor
    """``[num_blocks + 1, block_size, kv_heads, key_dim]``."""
    values: Tensor
    """``[num_blocks + 1, block_size, kv_heads, value_dim]``."""


def allocate_kv_cache(
    layout: KvLayout,
    kv_heads: int,
    head_dims: tuple[int, int],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> KvCache:
    """Return an empty cache of one layer; ``head_dims`` are those of a key and of a value."""
    key_dim, value_dim = head_dims
    shape = (layout.num_blocks + 1, layout.block_size, kv_heads)
    return KvCache(
        _zeros((*shape, key_dim), dtype, device), _zeros((*shape, value_dim), dtype, device)
    )


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that on a CPU take memory only where they are written: a large pool costs no time."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    untouched = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(untouched).view(dtype).view(shape)


class Attention(Protocol[Metadata]):
    """Attends the rows of steps to the pool of one model."""

    def plan(self, spans: Spans) -> Metadata:
        """Lay out a step, once for all layers.

        Args:
            spans: one for each sequence; together they hold all rows of the step, in order.
        """
        ...

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: KvCache,
        metadata: Metadata,
        scoring: Scoring,
    ) -> Tensor:
        """Write a step's keys and values into their slots, then attend each row to its sequence.

        All are written before any row attends, so rows may see what others of the step write.
        With ``s(p)`` the slot of position ``p`` in the row's own sequence, ``g(h)`` the KV head of
        head ``h``, and ``P`` the positions that row ``i`` at position ``p_i`` sees, those in
        ``[0, p_i]`` or, with a window, in ``(p_i - window, p_i]``::

            a[i, h, p] = scaling * sum_d q[i, h, d] * keys[s(p), g(h), d]
            w[i, h, p] = softmax over p in P of cap(a[i, h, p])
            out[i, h]  = sum over p in P of w[i, h, p] * values[s(p), g(h)]

        where ``cap(s)`` is ``s`` or, with a soft cap ``c``, ``c * tanh(s / c)``.

        Args:
            q: ``[rows, heads, key_dim]``, float32, bfloat16 or float16; positions already applied.
                Like ``k`` and ``v`` it may be a view with strides, such as a part of one tensor
                that holds all three.
            k: ``[rows, kv_heads, key_dim]``; ``heads`` is a multiple of ``kv_heads``.
            v: ``[rows, kv_heads, value_dim]``.
            cache: the layer's blocks; slots of this step are overwritten.
            metadata: of the step.
            scoring: of this layer; its window is one of those that the implementation was made for.

        Returns:
            ``[rows, heads, value_dim]``, contiguous, dtype of ``q``.
        """
        ...
