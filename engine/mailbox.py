"""Messages from the stream's thread to the engine's thread."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition
from typing import Protocol

from loraplex.engine.inspection import Inspection
from loraplex.engine.protocol import Abort, Drop, Submit, Why
from loraplex.engine.residency_protocol import Pins, Warm


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A request that was aborted before it came here."""

    submit: Submit


Message = Submit | Withdrawn | Abort | Why | Drop | Pins | Warm | Inspection


class Inbox(Protocol):
    """Where messages to the engine are put."""

    def put(self, *messages: Message) -> None:
        """Add messages; safe from any thread."""


class Mailbox:
    """An unbounded queue with a wake-up. What it holds is bounded by the scheduler, which refuses
    what exceeds its own bounds each time it takes the messages."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._asides: deque[Callable[[], None]] = deque()
        self._changed = Condition()
        self._woken = False
        self._has_news = False

    @property
    def has_news(self) -> bool:
        """True if something came since the last `take`, or is to be done between two steps; safe
        from any thread."""
        return self._has_news or bool(self._asides)

    def put(self, *messages: Message) -> None:
        """Add messages; safe from any thread."""
        with self._changed:
            self._messages.extend(messages)
            self._has_news = True
            self._changed.notify()

    def put_aside(self, aside: Callable[[], None]) -> None:
        """Add something else to be done on the engine's thread, between two steps; it must be
        short, and raise nothing. Safe from any thread."""
        with self._changed:
            self._asides.append(aside)
            self._changed.notify()

    def take_aside(self) -> Callable[[], None] | None:
        """Remove and return the oldest of these, so that a step comes before the next."""
        with self._changed:
            return self._asides.popleft() if self._asides else None

    def wake(self) -> None:
        """End the current or next `wait` without a message; safe from any thread."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def take(self) -> list[Message]:
        """Remove and return all messages."""
        with self._changed:
            messages = list(self._messages)
            self._messages.clear()
            self._has_news = False
            return messages

    def take_submits(self) -> list[Submit]:
        """Remove and return the requests that come before any other message."""
        with self._changed:
            submits: list[Submit] = []
            while self._messages and isinstance(first := self._messages[0], Submit):
                submits.append(first)
                self._messages.popleft()
            return submits

    def wait(self, at_most_s: float | None = None) -> None:
        """Block until there is something to take or `wake` was called, or for so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self._asides or self._woken, at_most_s)
            self._woken = False
