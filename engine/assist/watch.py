"""Keeps the processes that compute adapters' parts of prompts, beside the engine's steps."""

import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from queue import Empty, SimpleQueue
from select import POLLIN, poll
from threading import Condition, Thread
from time import monotonic, sleep

from loraplex.engine.assist.assistant import Assistant, Cause

_log = logging.getLogger(__name__)

START_S = 60.0
"""A process that cannot be asked by then is killed."""
LATE_S = 1.0
"""A process whose answer is overdue for as long is killed."""
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.5, 30.0
STABLE_S = 60.0
"""When a process that lived as long dies, the next starts after the least pause."""


@dataclass(slots=True, eq=False)
class _Place:
    """A core, and the process that is bound to it."""

    core: int
    backoff_s: float
    assistant: Assistant | None = None
    is_ready: bool = False
    at_s: float = 0.0
    """When the process was started; when the next is to be, if there is none."""


class Watch:
    """Starts a process for each core, and again with back-off whenever one has ended.

    A thread of its own starts, kills and buries them, so that nobody waits for that; it is their
    parent, and they end with it.
    """

    def __init__(
        self,
        cores: Sequence[int],
        min_backoff_s: float = MIN_BACKOFF_S,
        late_s: float = LATE_S,
    ) -> None:
        self.num_lost: dict[Cause, int] = {"died": 0, "late": 0}
        """Processes that have ended, by why."""
        self._min_backoff_s = min_backoff_s
        self._late_s = late_s
        self._places = [_Place(core, min_backoff_s) for core in cores]
        self._ready: tuple[Assistant, ...] = ()
        self._busy_ns = 0
        self._forgotten: SimpleQueue[int] = SimpleQueue()
        self._wake, self._woken = socket.socketpair()
        self._is_closing = False
        self._changed = Condition()
        self._thread = Thread(target=self._run, name="assist", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> Sequence[Assistant]:
        """Those that can be asked."""
        return [assistant for assistant in self._ready if assistant.can_be_asked]

    @property
    def num_processes(self) -> int:
        """All that there should be."""
        return len(self._places)

    @property
    def num_starting(self) -> int:
        """Those that will be ready, or wait for the end of a pause, or were late."""
        return len(self._places) - len(self.ready)

    @property
    def busy_s(self) -> float:
        """That they have computed for answers, all together."""
        return (self._busy_ns + sum(assistant.busy_ns for assistant in self._ready)) / 1e9

    def wait(self, until: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something is true of these processes; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(until, timeout_s)

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until all can be asked; False if that takes longer."""
        return self.wait(lambda: not self.num_starting, timeout_s)

    def forget(self, number: int) -> None:
        """Have all processes give up an adapter. From any thread; waits for nothing."""
        self._forgotten.put(number)
        self.look()

    def look(self) -> None:
        """See now how each process is. From any thread; waits for nothing."""
        with suppress(OSError):  # it is closed, or was called before
            self._wake.send(b"\0", socket.MSG_DONTWAIT)

    def close(self) -> None:
        """End all, and wait until they have ended."""
        self._is_closing = True
        self.look()
        self._thread.join()
        self._wake.close()
        self._woken.close()

    def _run(self) -> None:
        try:
            while not self._is_closing:
                try:
                    self._look_once()
                except Exception:  # noqa: BLE001  the next round may go well
                    _log.exception("processes that assist could not be looked after")
                    sleep(self._min_backoff_s)
        finally:
            self._ready = ()
            for place in self._places:
                if place.assistant is not None:
                    place.assistant.reap()
                    place.assistant = None

    def _look_once(self) -> None:
        self._pass_on_forgotten()
        for place in self._places:
            if place.assistant is None and monotonic() >= place.at_s:
                self._start(place)
        readable = self._wait()
        for place in self._places:
            if place.assistant is not None:
                self._tend(place, place.assistant, readable)
        with self._changed:
            self._changed.notify_all()

    def _wait(self) -> set[int]:
        """Wait until there is something to do; return the descriptors that can be read from."""
        now = monotonic()
        waiting, next_s = poll(), now + START_S
        waiting.register(self._woken, POLLIN)
        for place in self._places:
            if place.assistant is None:
                next_s = min(next_s, place.at_s)
                continue
            waiting.register(place.assistant.ended, POLLIN)
            overdue_s = self._overdue_s(place, place.assistant)
            if overdue_s is not None:
                waiting.register(place.assistant, POLLIN)
                next_s = min(next_s, overdue_s)
            elif place.assistant.rests_until_s > now:
                next_s = min(next_s, place.assistant.rests_until_s)
        found = waiting.poll(ceil(max(0.0, next_s - monotonic()) * 1e3))
        with suppress(BlockingIOError):
            self._woken.recv(4096, socket.MSG_DONTWAIT)
        return {descriptor for descriptor, _ in found}

    def _overdue_s(self, place: _Place, assistant: Assistant) -> float | None:
        """When it is to be killed unless it has been heard of before; None if nothing is awaited
        of it."""
        if assistant.cause is not None:
            return None
        if not place.is_ready:
            return place.at_s + START_S
        since_s = assistant.late_since_s
        return None if since_s is None else since_s + self._late_s

    def _pass_on_forgotten(self) -> None:
        with suppress(Empty):
            while True:
                number = self._forgotten.get_nowait()
                for assistant in self._ready:
                    assistant.forget(number)

    def _start(self, place: _Place) -> None:
        try:
            place.assistant, place.at_s = Assistant(place.core), monotonic()
        except OSError as error:
            _log.error("a process that assists could not be started: %s", error)
            self._pause(place)

    def _tend(self, place: _Place, assistant: Assistant, readable: set[int]) -> None:
        if assistant.ended in readable:
            self._bury(place, assistant)
        elif assistant.fileno() in readable:
            if place.is_ready:
                assistant.late_since_s = None  # who asks next passes over that answer
            else:
                place.is_ready = assistant.is_ready()
                self._list_ready()
        elif (overdue_s := self._overdue_s(place, assistant)) and monotonic() >= overdue_s:
            assistant.kill("late")

    def _bury(self, place: _Place, assistant: Assistant) -> None:
        assistant.reap()
        cause = assistant.cause or "died"
        _log.warning("a process that assists was lost (%s); starting another", cause)
        if monotonic() - place.at_s > STABLE_S:
            place.backoff_s = self._min_backoff_s
        place.assistant, place.is_ready = None, False
        self._pause(place)
        self.num_lost[cause] += 1
        self._busy_ns += assistant.busy_ns
        self._list_ready()

    def _pause(self, place: _Place) -> None:
        place.at_s = monotonic() + place.backoff_s
        place.backoff_s = min(2 * place.backoff_s, MAX_BACKOFF_S)

    def _list_ready(self) -> None:
        with self._changed:
            self._ready = tuple(p.assistant for p in self._places if p.is_ready and p.assistant)
            self._changed.notify_all()
