"""Weights that PEFT ties, and yet writes twice: both copies must say the same.

Of two that differ PEFT would use the one that it happens to load last.
"""

from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import numpy as np

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.claims import Claims, Role
from loraplex.adapters.config import AdapterConfig
from loraplex.adapters.errors import Problem
from loraplex.adapters.tensor_file import TensorEntry

_ROWS_AT_ONCE = 4096
_DTYPES = MappingProxyType({"F32": "<u4", "BF16": "<u2", "F16": "<u2"})
# Of the embedding, of the head; a head's A is the embedding's B on its side, and the reverse.
_TIED = ((Role.EMBEDDING_A, Role.LORA_B), (Role.EMBEDDING_B, Role.LORA_A))


def problems(
    path: Path, config: AdapterConfig, claims: Claims, base: BaseShapes
) -> Iterator[Problem]:
    """Compare the copies in a tensor file, whose shapes are known to fit the base.

    Raises:
        OSError: the file cannot be read.
    """
    if not base.is_tied or base.token_embedding is None:
        return
    embedding = claims.get(base.token_embedding, {})
    for head in sorted(base.heads):
        of_head = claims.get(head, {})
        pairs = [(Role.BASE_WEIGHT, Role.BASE_WEIGHT)]
        if config.ensure_weight_tying:
            pairs += [(Role.SAVED_WEIGHT, Role.SAVED_WEIGHT), *_TIED]
        for mine, its in pairs:
            if mine not in embedding or its not in of_head:
                continue
            if not _equal(path, embedding[mine], of_head[its], turned=mine is not its):
                reason = f"differs from {embedding[mine].name}, to which it is tied"
                yield Problem(of_head[its].name, "", reason)


def _equal(path: Path, one: TensorEntry, other: TensorEntry, *, turned: bool) -> bool:
    if one.dtype != other.dtype:
        return False
    if one.dtype not in _DTYPES:
        return True  # refused for that
    first, second = _view(path, one), _view(path, other)
    if turned:
        second = second.T
    starts = range(0, first.shape[0], _ROWS_AT_ONCE)
    return first.shape == second.shape and all(
        np.array_equal(first[start : start + _ROWS_AT_ONCE], second[start : start + _ROWS_AT_ONCE])
        for start in starts
    )


def _view(path: Path, entry: TensorEntry) -> np.ndarray:
    dtype = np.dtype(_DTYPES[entry.dtype])
    return np.memmap(path, dtype, "r", offset=entry.start, shape=entry.shape)
