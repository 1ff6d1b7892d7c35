"""Host memory from which a step's data is copied to the device."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT_BYTES = 16  # of the widest load
ROOM_BYTES = 1 << 18
"""Of one step: ids, positions and sampling options of hundreds of rows, without long penalties."""


def host_tensor(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return memory of the host, ``[size]``, to be filled and copied to ``device``.

    For a GPU it is pinned, so that a copy with ``non_blocking=True`` does not wait for the device.
    Take new memory for each step: torch's allocator hands it out again only when the copy is done,
    while a buffer of one's own might be written again before.
    """
    return torch.empty(size, dtype=dtype, pin_memory=device.type == "cuda")


class Staging:
    """The arrays of one step on their way to a device: one copy takes all for which there is room.

    What ``add`` returns on a GPU may be read by what is queued behind ``send``.
    """

    def __init__(self, device: torch.device, num_bytes: int = ROOM_BYTES) -> None:
        """On a CPU arrays stay where they are."""
        self.device = device
        self._num_used = 0
        self._host: Tensor | None = None
        self._moved: Tensor | None = None
        if device.type != "cpu":
            self._take(num_bytes)

    def add(self, array: NDArray[Any]) -> Tensor:
        """Return where the array will be; shape and dtype stay, and it may change afterwards."""
        if self._host is None or self._moved is None:
            # What a plan holds is read-only, which torch does not know.
            return torch.from_numpy(array if array.flags.writeable else array.copy())
        start, end = self._num_used, self._num_used + array.nbytes
        if end > len(self._host):
            return torch.from_numpy(array.copy()).to(self.device)
        flat = np.ascontiguousarray(array).reshape(-1)
        self._host.numpy()[start:end] = flat.view(np.uint8)
        self._num_used = -(-end // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        return self._moved[start:end].view(dtype).view(array.shape)

    def send(self) -> None:
        """Queue the copy of all that was added; waits for nothing."""
        if self._host is not None and self._moved is not None:
            used = slice(min(self._num_used, len(self._host)))
            self._moved[used].copy_(self._host[used], non_blocking=True)

    def _take(self, num_bytes: int) -> None:
        self._host = host_tensor(num_bytes, torch.uint8, self.device)
        self._moved = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
