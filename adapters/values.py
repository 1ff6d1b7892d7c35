"""What the tensors of a file hold, each byte read once: the digest, and what cannot be served."""

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from loraplex.adapters.config import AdapterConfig
from loraplex.adapters.digest import AdapterHash
from loraplex.adapters.errors import Problem, TensorFileInvalid
from loraplex.adapters.tensor_file import TensorEntry, read_chunks


@dataclass(frozen=True, slots=True)
class Values:
    """Of all tensors of one file."""

    digest: str
    problems: tuple[Problem, ...]
    zero: frozenset[str]
    """Names of tensors that hold nothing but zeros."""


@dataclass(frozen=True, slots=True)
class _Bits:
    """How a dtype lays out numbers (IEEE 754)."""

    word: str
    """numpy's type for its bits."""
    magnitude: int
    """All bits but the sign's."""
    infinity: int
    """No number is as large."""


_BITS = MappingProxyType(
    {
        "F32": _Bits("<u4", 0x7FFFFFFF, 0x7F800000),
        "BF16": _Bits("<u2", 0x7FFF, 0x7F80),
        "F16": _Bits("<u2", 0x7FFF, 0x7C00),
    }
)


def read_values(path: Path, config: AdapterConfig, entries: tuple[TensorEntry, ...]) -> Values:
    """Read a file's tensors, which must come sorted by name."""
    adapter_hash = AdapterHash(config)
    problems: list[Problem] = []
    zero: set[str] = set()
    try:
        for entry in entries:
            bits = _BITS.get(entry.dtype)
            if bits is None:
                reason = "only F32, BF16 and F16 are served"
                problems.append(Problem(entry.name[:200], entry.dtype, reason))
            adapter_hash.start_tensor(entry)
            largest = 0
            for chunk in read_chunks(path, entry):
                adapter_hash.add_bytes(chunk)
                if bits is not None:
                    words = np.frombuffer(chunk, bits.word)
                    largest = max(largest, int((words & bits.magnitude).max()))
            # Without their signs, numbers of IEEE 754 are in the order of their bits.
            if bits is not None and largest >= bits.infinity:
                problems.append(Problem(entry.name[:200], "", "holds an infinity or NaN"))
            if bits is not None and largest == 0:
                zero.add(entry.name)
    except (OSError, ValueError, TensorFileInvalid) as error:  # the file may change meanwhile
        problems.append(Problem(path.name, "", f"cannot be read: {error}"))
    return Values(adapter_hash.hexdigest(), tuple(problems), frozenset(zero))
