"""What was worked out about stored adapters, by digest: what a digest names never changes."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import Generic, TypeVar, cast

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    value: T | None = None
    error: Exception | None = None
    until_s: float = 0.0


class Known(Generic[T]):
    """The answers that were asked for last, and for a while the failures, so that who asks again
    and again for what cannot be worked out costs no more than one try. Safe from any thread."""

    def __init__(
        self, max_known: int, retry_s: float, clock: Callable[[], float] = monotonic
    ) -> None:
        """A failure is tried again after `retry_s` seconds of `clock`."""
        self._max_known = max_known
        self._retry_s = retry_s
        self._clock = clock
        self._entries: OrderedDict[str, _Entry[T]] = OrderedDict()
        self._lock = Lock()

    def knows(self, digest: str) -> bool:
        """True if `of` has nothing to work out."""
        return self._is_good(self._find(digest))

    def find(self, digest: str) -> T | None:
        """What is known, without working anything out. Raises the failure, however old."""
        entry = self._find(digest)
        return None if entry is None else _value(entry)

    def of(self, digest: str, work_out: Callable[[], T]) -> T:
        """What is known, or is worked out now. Raises the failure, whatever it was."""
        entry = self._find(digest)
        if entry is None or not self._is_good(entry):
            entry = self._try(work_out)
            self._keep(digest, entry)
        return _value(entry)

    def _is_good(self, entry: _Entry[T] | None) -> bool:
        return entry is not None and (entry.error is None or self._clock() < entry.until_s)

    def _find(self, digest: str) -> _Entry[T] | None:
        with self._lock:
            entry = self._entries.get(digest)
            if entry is not None:
                self._entries.move_to_end(digest)
            return entry

    def _try(self, work_out: Callable[[], T]) -> _Entry[T]:
        try:
            return _Entry(work_out())
        except Exception as error:  # noqa: BLE001  it is raised to whoever asks
            return _Entry(error=error, until_s=self._clock() + self._retry_s)

    def _keep(self, digest: str, entry: _Entry[T]) -> None:
        with self._lock:
            self._entries[digest] = entry
            self._entries.move_to_end(digest)
            if len(self._entries) > self._max_known:
                self._entries.popitem(last=False)


def _value(entry: _Entry[T]) -> T:
    if entry.error is not None:
        raise entry.error.with_traceback(None)
    return cast("T", entry.value)
