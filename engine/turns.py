"""A function that runs in a thread of its own, in turns with whoever has it go on."""

from collections.abc import Callable
from threading import Lock, Thread
from typing import Generic, TypeVar

Result = TypeVar("Result")


class GivenUp(BaseException):
    """Raised where a function rests that is not to go on. No `except Exception` stops it."""


class Turns(Generic[Result]):
    """Runs a function that rests now and then. Only one of the two threads ever runs: the function
    while the other is inside `go_on` or `give_up`, and the other at all other times.

    The thread begins with the first turn and is gone when the function has ended. One that rests
    for ever must be given up. What the function holds goes with it at once: nothing here leads in a
    circle, which a collector would have to find first.
    """

    def __init__(self, function: Callable[[], Result], name: str) -> None:
        """``name`` is the thread's. What `function` calls may call `rest`."""
        self._function: Callable[[], Result] | None = function
        self._name = name
        self._thread: Thread | None = None
        # Either is released once for each turn: locks change threads faster than conditions do.
        self._go, self._back = Lock(), Lock()
        self._go.acquire()
        self._back.acquire()
        self._is_given_up = False
        self._is_over = False
        self._ended: tuple[Result] | BaseException | None = None

    @property
    def is_begun(self) -> bool:
        """True once it has had a turn."""
        return self._thread is not None

    def go_on(self) -> tuple[Result] | None:
        """Have the function run until it rests or has ended; return its result, if it has.

        Raises:
            BaseException: what the function raised.
        """
        self._turn()
        ended, self._ended = self._ended, None
        if not isinstance(ended, BaseException):
            return ended
        try:
            raise ended
        finally:
            del ended

    def give_up(self) -> None:
        """Have the function end where it rests; returns when the thread is gone."""
        self._is_given_up, self._function = True, None
        while self._thread is not None and not self._is_over:
            self._turn()

    def rest(self) -> None:
        """Inside the function: let the other thread run, until the next turn.

        Raises:
            GivenUp: there is none.
        """
        self._back.release()
        self._go.acquire()
        if self._is_given_up:
            raise GivenUp

    def _turn(self) -> None:
        if self._thread is None:
            # A daemon: whatever becomes of the engine, the process can end.
            thread = Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        else:
            self._go.release()
        self._back.acquire()
        if self._is_over:
            self._thread.join()

    def _run(self) -> None:
        function, self._function = self._function, None
        assert function is not None, "it was given up"
        try:
            self._ended = (function(),)
        except GivenUp:
            pass
        except BaseException as error:  # noqa: BLE001  the other thread raises it
            self._ended = error
        del function
        self._is_over = True
        self._back.release()
