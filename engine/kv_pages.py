"""Physical memory of KV blocks on a CPU, given back to the system while others use its budget."""

import ctypes
import mmap
from collections.abc import Iterable, Iterator, Sequence

from loraplex.kernels.attention import KvCache

_LIBC = ctypes.CDLL(None, use_errno=True)


def release_blocks(caches: Sequence[KvCache], blocks: Iterable[int]) -> None:
    """Give up the pages that lie wholly in these blocks, of all layers. What is read there next is
    zero; what is written takes memory again. Only for pools in the host's memory."""
    for first, end in _runs(sorted(blocks)):
        for cache in caches:
            for pool in cache:
                stride = pool.stride(0) * pool.element_size()
                _release(pool.data_ptr() + first * stride, pool.data_ptr() + end * stride)


def _release(start: int, end: int) -> None:
    """Between two addresses, where whole pages are."""
    page = mmap.PAGESIZE
    start, end = -(-start // page) * page, end // page * page
    if start < end:
        # If the system declines, the memory stays taken: then the process is larger, and not wrong.
        _LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def _runs(blocks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First of each run of neighbours, and one beyond its last."""
    start = 0
    for index in range(1, len(blocks) + 1):
        if index == len(blocks) or blocks[index] != blocks[index - 1] + 1:
            yield blocks[start], blocks[index - 1] + 1
            start = index
