"""Adapters' copies in the host's memory, as other processes can map them."""

import weakref
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from loraplex.adapters.weights import VerifiedAdapter
from loraplex.engine.assist.assistant import HostNumbers
from loraplex.engine.assist.process import Numbers

_DTYPES: Mapping[torch.dtype, Numbers] = MappingProxyType(
    {
        torch.float32: Numbers.FLOAT32,
        torch.float16: Numbers.FLOAT16,
        torch.bfloat16: Numbers.BFLOAT16,
    }
)


class HostCopies:
    """Numbers copies, since one of an adapter that comes back lies in other memory."""

    def __init__(self, on_gone: Callable[[int], None]) -> None:
        """`on_gone` is given the number of an adapter that has left the host, on any thread."""
        self._on_gone = on_gone
        self._numbers: dict[int, int] = {}
        """By address of the object that holds the memory; it leaves with that."""
        self._next = 0

    def of(self, adapter: VerifiedAdapter) -> HostNumbers | None:
        """Where its pairs lie; None if other processes cannot have them."""
        pairs, file = adapter.pairs, adapter.shared_fd
        if file is None or pairs.data.dtype not in _DTYPES:
            return None
        key = id(pairs.shared)
        if key not in self._numbers:
            self._numbers[key] = self._next
            self._next += 1
            weakref.finalize(pairs.shared, self._drop, key).atexit = False
        return HostNumbers(
            self._numbers[key], file, _DTYPES[pairs.data.dtype], pairs.b_is_transposed
        )

    def _drop(self, key: int) -> None:
        self._on_gone(self._numbers.pop(key))
