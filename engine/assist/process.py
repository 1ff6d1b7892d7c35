"""The program of a process that computes adapters' parts of prompts, and what it is told and tells.

Run as a file, without torch and without this package. It reads adapters where the worker has them,
and shares an arena with the worker, in which rows lie and their updates are put. It ends when the
worker does.
"""

import ctypes
import os
import signal
import socket
import struct
import sys
from collections import OrderedDict
from enum import IntEnum
from mmap import PROT_READ, mmap
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_ADAPTERS = 64
"""That a process has mapped; the one used longest ago is given up first."""
MAX_MESSAGE_BYTES = 1 << 16
FLOAT_BYTES = 4
_PR_SET_PDEATHSIG = 1

HEAD = struct.Struct("4q")
"""Of each message: kind, number, and two more that depend on the kind."""
WIDTHS = struct.Struct("2q")
"""Follows the head of a question: columns of its rows, and of their updates."""
UPDATE = struct.Struct("5qd")
"""Follows those, for each layer: see `Update`."""
ANSWER = struct.Struct("2q")
"""Number of the question, 0 once the process can be asked, and the nanoseconds it took."""


class Kind(IntEnum):
    """What a message is about."""

    ARENA = 0
    """A file of shared memory comes along, for all questions from now on."""
    ADAPTER = 1
    """Number of an adapter, its dtype, 1 if its ``b`` are transposed; a file comes along."""
    FORGET = 2
    """Number of an adapter that is asked for no more."""
    QUESTION = 3
    """Its number, the adapter's, and how many rows lie in the arena."""


class Numbers(IntEnum):
    """Dtypes of adapters."""

    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2


class Update(NamedTuple):
    """One layer: ``y[:, column : column + out] = scale · b (a x)``."""

    column: int
    a_start: int
    """Elements from the beginning of the adapter's numbers."""
    b_start: int
    out: int
    rank: int
    scale: float


class _Adapter(NamedTuple):
    numbers: NDArray[Any]
    dtype: int
    is_transposed: bool

    def matrix(self, start: int, rows: int, columns: int) -> NDArray[Any]:
        """Read where the worker has them; 16-bit numbers become float32 each time, which costs
        little beside what is done with them, and keeps nothing."""
        held = self.numbers[start : start + rows * columns].reshape(rows, columns)
        if self.dtype == Numbers.BFLOAT16:
            wide = np.empty(held.shape, np.uint32)
            np.left_shift(held, 16, out=wide, dtype=np.uint32)
            return wide.view(np.float32)
        return held.astype(np.float32, copy=False)


class _Served:
    """Answers one question after the other, in the order in which they come."""

    def __init__(self) -> None:
        self._adapters: OrderedDict[int, _Adapter] = OrderedDict()
        self._arena: NDArray[Any] = np.empty(0, np.float32)

    def take(self, message: bytes, files: list[int]) -> bytes | None:
        """Do what a message says; return the answer to a question."""
        kind, number, first, second = HEAD.unpack_from(message)
        if kind == Kind.QUESTION:
            started = perf_counter_ns()
            self._compute(message, first, second)
            return ANSWER.pack(number, perf_counter_ns() - started)
        if kind == Kind.FORGET:
            self._adapters.pop(number, None)
        elif kind == Kind.ADAPTER:
            dtype = (np.float32, np.float16, np.uint16)[first]
            numbers = np.frombuffer(_mapped(files[0], prot=PROT_READ), dtype)
            self._adapters[number] = _Adapter(numbers, first, bool(second))
            while len(self._adapters) > MAX_ADAPTERS:
                self._adapters.popitem(last=False)
        else:
            self._arena = np.frombuffer(_mapped(files[0]), np.float32)
        return None

    def _compute(self, message: bytes, adapter_number: int, num_rows: int) -> None:
        adapter = self._adapters[adapter_number]
        self._adapters.move_to_end(adapter_number)
        width, out_width = WIDTHS.unpack_from(message, HEAD.size)
        places = y_places(num_rows, width, out_width)
        x = self._arena[: num_rows * width].reshape(num_rows, width)
        y = self._arena[places].reshape(num_rows, out_width)
        for fields in UPDATE.iter_unpack(message[HEAD.size + WIDTHS.size :]):
            update = Update(*fields)
            a = adapter.matrix(update.a_start, update.rank, width)
            narrow = x @ a.T
            narrow *= np.float32(update.scale)
            if adapter.is_transposed:
                b = adapter.matrix(update.b_start, update.rank, update.out)
            else:
                b = adapter.matrix(update.b_start, update.out, update.rank).T
            np.matmul(narrow, b, out=y[:, update.column : update.column + update.out])


def y_places(num_rows: int, width: int, out_width: int) -> slice:
    """Where in the arena the updates of so many rows lie: behind the rows, ``[rows, out]``."""
    start = num_rows * width
    return slice(start, start + num_rows * out_width)


def _mapped(file: int, **how: int) -> mmap:
    try:
        return mmap(file, 0, **how)
    finally:
        os.close(file)


def main(file: int, core: int, parent: int) -> None:
    """Serve the worker at the other end of a socket, on one core."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they are for the worker, which ends this one
    # The end of the socket tells that the worker is gone, but not to a process that is stopped.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    os.sched_setaffinity(0, {core})
    np.seterr(all="ignore")
    np.ones((2, 2), np.float32) @ np.ones((2, 2), np.float32)
    served = _Served()
    with socket.socket(fileno=file) as worker:
        worker.send(ANSWER.pack(0, 0))
        while True:
            message, files, _, _ = socket.recv_fds(worker, MAX_MESSAGE_BYTES, 1)
            if not message:
                return
            answer = served.take(message, files)
            if answer is not None:
                worker.send(answer)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
