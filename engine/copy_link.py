"""The way of adapters to the device, which all copies share: who may copy, how much, how fast."""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition
from time import monotonic
from typing import Literal

CopyCause = Literal["load", "prefetch"]

_HALF_LIFE_S = 1.0
"""Of copying: after so much more of it, what was measured before counts half."""


class CopyStopped(Exception):
    """A copy was given up, or the link closed, before its next layer."""


@dataclass(slots=True, eq=False)
class Passage:
    """One adapter's way over the link. The link alone changes it."""

    is_prefetch: bool
    number: int
    """Loads go in this order."""
    num_bytes: int = 0
    """Of layers that were copied."""
    copy_s: float = 0.0
    """That this took, without waiting for others and for grants, but with the throttle's time."""
    is_given_up: bool = False
    is_stopped: bool = False
    """It was given up and has been told so: what is to come comes by another."""
    layer_bytes: int = 0
    """Of the layer that is being copied."""
    layer_from_s: float = 0.0


class CopyLink:
    """Says when each layer may be copied. Safe from any thread.

    Loads go before prefetches, and among themselves in the order of their start: while one is on
    its way from the host, prefetches pause between layers. Of the bytes that are granted with each
    step the last layer may be more than is left: what it takes too much is missing in the next
    grants, so that they hold on average; what they leave is gone. The throttle is exact on average:
    a copy takes the time that its bytes take at that rate, however small its layers are, unless
    memory is slower.
    """

    def __init__(
        self,
        limit_bytes_per_s: float | None = None,
        clock: Callable[[], float] = monotonic,
        wait: Callable[[Condition, float | None], object] = Condition.wait,
    ) -> None:
        """`limit_bytes_per_s` is the throttle, None for none; `clock` tells seconds, and `wait`
        waits for a condition, at most so many of them."""
        self.limit_bytes_per_s = limit_bytes_per_s
        self._clock = clock
        self._wait = wait
        self._changed = Condition()
        self._entered: list[Passage] = []
        self._num_numbers = 0
        self._left_bytes: int | None = None
        """Of the grant; below 0 what was taken too much."""
        self._free_s = float("-inf")
        """When the throttle lets the next layer begin."""
        self._last: Passage | None = None
        """Whose layer that waits for."""
        self._is_closed = False
        self._copied_bytes: dict[CopyCause, int] = {"load": 0, "prefetch": 0}
        self._recent_bytes = self._recent_s = 0.0

    @property
    def bytes_per_s(self) -> float | None:
        """Measured of late, with the throttle; None before anything was copied."""
        with self._changed:
            return self._recent_bytes / self._recent_s if self._recent_s else None

    def copied_bytes(self, cause: CopyCause) -> int:
        """That went to the device since the start; of a prefetch that became a load, each layer by
        what it was then."""
        return self._copied_bytes[cause]

    def passage(self, *, is_prefetch: bool) -> Passage:
        """A new one, in the order of starts. It is nobody's way until it is entered."""
        with self._changed:
            self._num_numbers += 1
            return Passage(is_prefetch, self._num_numbers)

    def enter(self, passage: Passage) -> None:
        """From here to `leave` others wait for it. Raises CopyStopped."""
        with self._changed:
            self._check(passage)
            self._entered.append(passage)

    def take(self, passage: Passage, num_bytes: int) -> None:
        """Wait until the next layer, of so many bytes, may be copied: if all before it were as fast
        as the throttle, it is late by its own time. Raises CopyStopped."""
        with self._changed:
            now = self._clock()
            self._end_layer(passage, now)
            # What a copy itself took is the throttle's time too, else it would add up.
            behind_s = max(0.0, now - self._free_s) if self._last is passage else 0.0
            self._check(passage)
            while not self._may_go(passage):
                self._wait(self._changed, None)
                self._check(passage)
            if self._left_bytes is not None:
                self._left_bytes -= num_bytes
            began_s = self._clock()
            if self.limit_bytes_per_s is not None:
                self._last = passage
                self._free_s = max(self._free_s, began_s - behind_s)
                self._free_s += num_bytes / self.limit_bytes_per_s
                self._wait_until(passage, self._free_s)
            passage.layer_bytes, passage.layer_from_s = num_bytes, began_s

    def leave(self, passage: Passage) -> None:
        """Its last layer was copied, or no more will be."""
        with self._changed:
            self._end_layer(passage, self._clock())
            if passage in self._entered:
                self._entered.remove(passage)
            self._changed.notify_all()

    def grant(self, num_bytes: int | None) -> None:
        """So many bytes may be copied until the next grant; None for no bound, which forgives what
        was taken too much. Never waits for a copy."""
        if num_bytes is None and self._left_bytes is None:
            return
        with self._changed:
            missing = min(0, self._left_bytes or 0)
            self._left_bytes = None if num_bytes is None else num_bytes + missing
            self._changed.notify_all()

    def give_up(self, passage: Passage) -> None:
        """Stop it before its next layer."""
        with self._changed:
            passage.is_given_up = True
            self._changed.notify_all()

    def want(self, passage: Passage, *, is_prefetch: bool) -> bool:
        """Let it go on, as what is wanted now: a prefetch that becomes a load goes behind the loads
        there are. False if it has been stopped."""
        with self._changed:
            if passage.is_stopped:
                return False
            passage.is_given_up = False
            if passage.is_prefetch and not is_prefetch:
                self._num_numbers += 1
                passage.number = self._num_numbers
            passage.is_prefetch = is_prefetch
            self._changed.notify_all()
            return True

    def close(self) -> None:
        """Stop all, for ever."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _check(self, passage: Passage) -> None:
        if passage.is_given_up or self._is_closed:
            passage.is_stopped = True
            raise CopyStopped

    def _may_go(self, passage: Passage) -> bool:
        if self._left_bytes is not None and self._left_bytes <= 0:
            return False
        loads = (other for other in self._entered if not other.is_prefetch)
        if passage.is_prefetch:
            return not any(loads)
        return all(load.number >= passage.number for load in loads)

    def _wait_until(self, passage: Passage, at_s: float) -> None:
        while (left_s := at_s - self._clock()) > 0:
            self._wait(self._changed, left_s)
            self._check(passage)

    def _end_layer(self, passage: Passage, now: float) -> None:
        """Count what was copied since it was taken."""
        num_bytes, passage.layer_bytes = passage.layer_bytes, 0
        if not num_bytes:
            return
        seconds = now - passage.layer_from_s
        passage.num_bytes += num_bytes
        passage.copy_s += seconds
        self._copied_bytes["prefetch" if passage.is_prefetch else "load"] += num_bytes
        kept = 0.5 ** (seconds / _HALF_LIFE_S)
        self._recent_bytes = self._recent_bytes * kept + num_bytes
        self._recent_s = self._recent_s * kept + seconds
