"""One process that computes adapters' parts of prompts, as the worker sees it."""

import os
import signal
import socket
import subprocess
import sys
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from select import POLLIN, poll
from threading import Lock
from time import monotonic
from typing import Literal

from torch import Tensor

from loraplex.engine.assist import process
from loraplex.engine.assist.process import Kind, Numbers, Update
from loraplex.engine.assist.shared_rows import SharedRows

PROGRAM = Path(process.__file__)
Cause = Literal["died", "late"]

MIN_REST_S, MAX_REST_S = 0.5, 30.0
"""A process that was late is not asked for so long: twice as long each time, up to the most."""
FORGIVEN_S = 60.0
"""One that is late after as long begins with the least again."""


class Lost(Exception):
    """The process answers no more, or not in time."""


@dataclass(frozen=True, slots=True)
class HostNumbers:
    """Where an adapter's pairs lie in the host's memory."""

    number: int
    """Of the adapter; never that of another."""
    file: int
    """Descriptor of the pages, which other processes can map."""
    dtype: Numbers
    b_is_transposed: bool


class Assistant:
    """One life of a process.

    `ask` and `answer` belong to the engine's side, `is_ready`, `forget` and `reap` to whoever
    watches over the process. What is open of it is closed when neither has it any more: a
    descriptor that one of them waits on is never another's.
    """

    def __init__(self, core: int) -> None:
        """Start it, bound to a core. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603  our own program and numbers
                    [sys.executable, "-I", str(PROGRAM)]
                    + [str(number) for number in (theirs.fileno(), core, os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={"OPENBLAS_NUM_THREADS": "1"},
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # the terminal's signals are for the worker
                )
            except BaseException:
                ours.close()
                raise
        self.pid = self._process.pid
        try:
            self.ended = os.pidfd_open(self.pid)
        except BaseException:
            ours.close()
            self._process.kill()
            self._process.wait()
            raise
        """Can be read from when the process has ended."""
        self.cause: Cause | None = None
        """Why it is lost; None while it is not."""
        self.busy_ns = 0
        """That it computed for answers."""
        self.late_since_s: float | None = None
        """Since when its answer has been overdue; None if it is not."""
        self.rests_until_s = 0.0
        """Of the monotonic clock: it was late, and is not asked before."""
        self._rest_s = 0.0
        self._socket = ours
        self._known: OrderedDict[int, None] = OrderedDict()
        self._guard = Lock()
        self._rows: SharedRows | None = None
        self._sequence = self._num_answered = 0
        """Numbers of the last question, and of the last that was answered."""
        self._release = weakref.finalize(self, _close, ours, self.ended)

    @property
    def can_be_asked(self) -> bool:
        """True if it is neither lost nor late, and has not been of late."""
        is_there = self.cause is None and self.late_since_s is None
        return is_there and monotonic() >= self.rests_until_s

    def fileno(self) -> int:
        """Of the socket: can be read from when the process can be asked."""
        return self._socket.fileno()

    def is_ready(self) -> bool:
        """Take its first message, which says that it can be asked; False if it ended before."""
        try:
            return len(self._socket.recv(process.ANSWER.size, socket.MSG_DONTWAIT)) > 0
        except OSError:
            return False

    def ask(self, host: HostNumbers, x: Tensor, out_width: int, updates: Iterable[Update]) -> int:
        """Have updates of ``x [rows, in]`` computed, and return the question's number. An earlier
        one whose answer has not been taken is given up: the process may still write its updates, so
        that the memory which they share is left to it.

        Raises:
            Lost: it died, or takes no more.
        """
        num_rows, width = x.shape
        rows = self._rows
        is_busy = self._num_answered != self._sequence
        if rows is None or is_busy or not rows.fits(num_rows * (width + out_width)):
            rows = SharedRows(num_rows * (width + out_width), self._share)
            self._rows = rows
        self._introduce(host)
        rows.put(x)
        self._sequence += 1
        parts = [
            process.HEAD.pack(Kind.QUESTION, self._sequence, host.number, num_rows),
            process.WIDTHS.pack(width, out_width),
            *(process.UPDATE.pack(*update) for update in updates),
        ]
        self._send(b"".join(parts))
        return self._sequence

    def answer(self, sequence: int, deadline_s: float) -> int:
        """Wait for the answer to a question until a time of the monotonic clock; return the
        nanoseconds that it took to compute.

        Raises:
            Lost: the process died, or is late, or was asked another question since.
        """
        if sequence != self._sequence:
            raise Lost("another question took its place")
        while True:
            answer = self._received(deadline_s)
            number, busy_ns = process.ANSWER.unpack(answer)
            self.busy_ns += busy_ns
            self._num_answered = number
            if number == sequence:
                return int(busy_ns)

    def updates(self, num_rows: int, width: int, out_width: int) -> Tensor:
        """``[rows, out]`` float32 of the last question, once it was answered; a view."""
        assert self._rows is not None
        return self._rows.updates(num_rows, width, out_width)

    def forget(self, number: int) -> None:
        """Have it give up an adapter, if it has it. Raises nothing: a dead one has none."""
        with self._guard:
            if number in self._known:
                del self._known[number]
                try:
                    self._send(process.HEAD.pack(Kind.FORGET, number, 0, 0))
                except Lost:
                    return

    def kill(self, cause: Cause) -> None:
        """End it; the first cause is why."""
        self.cause = self.cause or cause
        try:
            signal.pidfd_send_signal(self.ended, signal.SIGKILL)
        except ProcessLookupError:
            return

    def reap(self) -> None:
        """End it if need be, and wait until it has ended."""
        self.kill("died")
        self._process.wait()

    def _received(self, deadline_s: float) -> bytes:
        try:
            while True:
                try:
                    answer = self._socket.recv(process.ANSWER.size, socket.MSG_DONTWAIT)
                    break
                except BlockingIOError:
                    self._wait(deadline_s)
        except ConnectionError:
            answer = b""
        if not answer:
            self.kill("died")
            raise Lost("it died")
        return answer

    def _wait(self, deadline_s: float) -> None:
        waiting = poll()
        waiting.register(self._socket, POLLIN)
        if not waiting.poll(max(0.0, deadline_s - monotonic()) * 1e3):
            self._rest()
            raise Lost("it is late")

    def _rest(self) -> None:
        """It is late: whoever waits for it next would wait in vain, too."""
        now = monotonic()
        is_forgiven = not self._rest_s or now > self.rests_until_s + FORGIVEN_S
        self._rest_s = MIN_REST_S if is_forgiven else min(2 * self._rest_s, MAX_REST_S)
        self.rests_until_s, self.late_since_s = now + self._rest_s, now

    def _introduce(self, host: HostNumbers) -> None:
        """Let it map the adapter's pages, if it has not; it forgets others by the same rule."""
        with self._guard:
            if host.number not in self._known:
                told = (Kind.ADAPTER, host.number, host.dtype, host.b_is_transposed)
                self._send(process.HEAD.pack(*told), host.file)
                if len(self._known) == process.MAX_ADAPTERS:
                    self._known.popitem(last=False)
            self._known[host.number] = None
            self._known.move_to_end(host.number)

    def _share(self, file: int) -> None:
        self._send(process.HEAD.pack(Kind.ARENA, 0, 0, 0), file)

    def _send(self, message: bytes, *files: int) -> None:
        try:
            socket.send_fds(self._socket, [message], files, socket.MSG_DONTWAIT)
        except BlockingIOError:
            self.kill("late")
            raise Lost("it takes no more") from None
        except ConnectionError:
            self.kill("died")
            raise Lost("it died") from None


def _close(worker_end: socket.socket, ended: int) -> None:
    worker_end.close()
    os.close(ended)
