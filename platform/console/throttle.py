"""Slows down whoever tries keys: a few failures an address, then a pause."""

from collections import OrderedDict, deque
from collections.abc import Callable

MAX_FAILURES = 5
WINDOW_S = 60.0
MAX_ADDRESSES = 10_000


class SignInThrottle:
    """Failed attempts of the last minute, by client address."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is in seconds."""
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """How long this address has to wait for its next attempt; 0 if it need not."""
        failures = self._failures.get(address)
        if failures is None or len(failures) < MAX_FAILURES:
            return 0.0
        return max(0.0, failures[0] + WINDOW_S - self._clock())

    def note_failure(self, address: str) -> None:
        """Count a refused key."""
        failures = self._failures.setdefault(address, deque(maxlen=MAX_FAILURES))
        failures.append(self._clock())
        self._failures.move_to_end(address)
        if len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)

    def note_success(self, address: str) -> None:
        """Forget the failures of an address that had a key after all."""
        self._failures.pop(address, None)
