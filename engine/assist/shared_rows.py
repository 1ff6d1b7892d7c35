"""Memory that the worker shares with one process: rows in it, and their updates."""

import os
from collections.abc import Callable
from mmap import mmap

import torch
from torch import Tensor

from loraplex.engine.assist.process import FLOAT_BYTES, y_places

_MIN_BYTES = 1 << 20


class SharedRows:
    """Pages that both have mapped. They go when neither has."""

    def __init__(self, num_floats: int, share: Callable[[int], None]) -> None:
        """For as many numbers, and more, so that it seldom has to be replaced; ``share`` sends the
        process the file of it."""
        num_bytes = max(_MIN_BYTES, 1 << (num_floats * FLOAT_BYTES - 1).bit_length())
        file = os.memfd_create("loraplex-rows")
        try:
            os.truncate(file, num_bytes)
            self._floats = torch.frombuffer(mmap(file, num_bytes), dtype=torch.float32)
            share(file)
        finally:
            os.close(file)

    def fits(self, num_floats: int) -> bool:
        """True if so many numbers have room."""
        return num_floats <= len(self._floats)

    def put(self, x: Tensor) -> None:
        """Write rows, ``[rows, in]`` of any dtype, on the CPU."""
        self._floats[: x.numel()].view(x.shape).copy_(x)

    def updates(self, num_rows: int, width: int, out_width: int) -> Tensor:
        """``[rows, out]`` float32, a view; means something once the process has answered."""
        return self._floats[y_places(num_rows, width, out_width)].view(num_rows, out_width)
