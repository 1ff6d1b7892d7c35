"""Memory that goes back to the system with the tensor that lies in it."""

import mmap

import torch
from torch import Tensor


def own_pages(num_elements: int, dtype: torch.dtype) -> Tensor:
    """Return ``[num_elements]`` of the host's memory, zeros, in pages of its own.

    Adapters come and go on several threads: out of the heap they would leave holes of their size,
    and a process that holds as much as ever would grow (by some 30 KB a load of 1 MB).
    """
    if not num_elements:
        return torch.empty(0, dtype=dtype)
    pages = mmap.mmap(-1, num_elements * dtype.itemsize)
    return torch.frombuffer(pages, dtype=dtype, count=num_elements)
