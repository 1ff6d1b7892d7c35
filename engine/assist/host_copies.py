"""Adapters' copies in the host's memory, as other processes can map them."""

import weakref
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from loraplex.adapters.weights import VerifiedAdapter
from loraplex.engine.assist.assistant import HostNumbers
from loraplex.engine.assist.process import Numbers

FileOf = Callable[[VerifiedAdapter], int | None]
"""Descriptor of the pages in which an adapter's pairs lie; None if no other process can have them.
It is open for as long as the adapter's tensor is there."""

_DTYPES: Mapping[torch.dtype, Numbers] = MappingProxyType(
    {
        torch.float32: Numbers.FLOAT32,
        torch.float16: Numbers.FLOAT16,
        torch.bfloat16: Numbers.BFLOAT16,
    }
)


class HostCopies:
    """Numbers adapters, each tensor anew, since nothing else tells copies of one adapter apart."""

    def __init__(self, file_of: FileOf, on_gone: Callable[[int], None]) -> None:
        """`on_gone` is given the number of an adapter that has left the host, on any thread."""
        self._file_of = file_of
        self._on_gone = on_gone
        self._numbers: dict[int, int] = {}
        self._next = 0

    def of(self, adapter: VerifiedAdapter) -> HostNumbers | None:
        """Where its pairs lie; None if other processes cannot have them."""
        file, data = self._file_of(adapter), adapter.pairs.data
        if file is None or data.dtype not in _DTYPES:
            return None
        key = id(data)
        if key not in self._numbers:
            self._numbers[key] = self._next
            self._next += 1
            weakref.finalize(data, self._drop, key).atexit = False
        is_transposed = adapter.pairs.b_is_transposed
        return HostNumbers(self._numbers[key], file, _DTYPES[data.dtype], is_transposed)

    def _drop(self, key: int) -> None:
        self._on_gone(self._numbers.pop(key))
