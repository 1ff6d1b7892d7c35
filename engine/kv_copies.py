"""Copies of KV blocks between the device's pool and the host's."""

from collections.abc import Iterable, Sequence
from time import perf_counter

import torch
from torch import Tensor

from loraplex.engine.plan import BlockCopy
from loraplex.kernels.attention import KvCache

_MEASURED_BLOCKS = 16
_NUM_REPEATS = 3


class KvCopies:
    """Moves blocks of all layers; both pools have one `KvCache` for each layer.

    On a CPU both lie in the same memory, and a copy is one within it.
    """

    def __init__(self, device: Sequence[KvCache], host: Sequence[KvCache]) -> None:
        self._pairs = [
            pair
            for of_layer in zip(device, host, strict=True)
            for pair in zip(*of_layer, strict=True)
        ]

    @torch.inference_mode()
    def to_host(self, copies: Iterable[BlockCopy]) -> None:
        """Copy device blocks to host blocks; done when it returns."""
        for copy in copies:
            for on_device, on_host in self._pairs:
                _copy(on_device, copy.device_blocks, on_host, copy.host_blocks)

    @torch.inference_mode()
    def to_device(self, copies: Iterable[BlockCopy]) -> None:
        """Copy host blocks to device blocks, before whatever the device does next."""
        for copy in copies:
            for on_device, on_host in self._pairs:
                _copy(on_host, copy.host_blocks, on_device, copy.device_blocks)

    def measure_ms_per_block(self) -> float:
        """Time of one block, one way; 0 if there are none. Nothing may be in the first blocks of
        either pool yet."""
        num_blocks = min(_MEASURED_BLOCKS, *(len(pool) - 1 for pool in self._pairs[0]))
        if not num_blocks:
            return 0.0
        blocks = tuple(range(num_blocks))
        copies = [BlockCopy("", blocks, blocks)]
        fastest_s = float("inf")
        for _ in range(_NUM_REPEATS):
            started = perf_counter()
            self.to_host(copies)
            self.to_device(copies)
            self.to_host(copies)  # which waits until the device has what was copied to it
            fastest_s = min(fastest_s, perf_counter() - started)
        return fastest_s * 1e3 / (3 * num_blocks)


def _copy(source: Tensor, from_: Sequence[int], target: Tensor, to: Sequence[int]) -> None:
    read = source.index_select(0, torch.tensor(from_, device=source.device))
    target.index_copy_(0, torch.tensor(to, device=target.device), read.to(target.device))
