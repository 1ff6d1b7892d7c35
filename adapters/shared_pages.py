"""Memory of the host that other processes can map, and a GPU can be told of."""

import errno
import fcntl
import os
import resource
from dataclasses import dataclass
from weakref import finalize

import torch
from torch import Tensor

MAX_FILES_SHARE = 0.5
"""Of the files that this process may have open, those in which shared memory may lie."""


@dataclass(frozen=True, slots=True)
class HostPages:
    """What memory of the host is for, beside being read here."""

    pins: bool = False
    """A GPU reads it beside what the host does."""
    shares: bool = False
    """Other processes map it."""


@dataclass(frozen=True, eq=False)
class SharedPages:
    """Memory that lies in a file of its own, which has no name and ends with this object."""

    data: Tensor
    """``[num_elements]``, all of the file. It may outlive the file's number."""
    fd: int
    """Open while this object lives. The file cannot change its size, so whoever maps it can read
    all of it."""

    @classmethod
    def of(cls, num_elements: int, dtype: torch.dtype, *, pins: bool = False) -> "SharedPages":
        """Return zeros. ``pins`` tells the GPU of them; that has not been run on one.

        Raises:
            OSError: there is no memory, or too many files are open.
        """
        fd = os.memfd_create("adapter", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if fd >= most * MAX_FILES_SHARE:  # numbers are given from the lowest
                raise OSError(errno.EMFILE, "too many adapters lie in files")  # noqa: TRY301  closed below
            os.ftruncate(fd, num_elements * dtype.itemsize)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            # Unlike `mmap` of the standard library this opens no second number for the file.
            path = f"/proc/self/fd/{fd}"
            data = torch.from_file(path, shared=True, size=num_elements, dtype=dtype)
        except BaseException:
            os.close(fd)
            raise
        pages = cls(data, fd)
        is_pinned = pins and _pin(data)
        # Runs while `data` is still held: what a GPU knows of is not unmapped before.
        finalize(pages, _close, fd, data.data_ptr() if is_pinned else None).atexit = False
        return pages


def _pin(data: Tensor) -> bool:
    """Have the GPU read memory that was not taken by torch; False if it cannot."""
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch has no types here
    return int(runtime.cudaHostRegister(data.data_ptr(), data.nbytes, 0)) == 0


def _close(fd: int, pinned_at: int | None) -> None:
    if pinned_at is not None:
        torch.cuda.cudart().cudaHostUnregister(pinned_at)  # type: ignore[no-untyped-call]  # as above
    os.close(fd)
