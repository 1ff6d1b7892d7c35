"""Copies of adapters from the host to the device: one link, one copy after the other."""

from collections import deque
from collections.abc import Iterable

from loraplex.adapters.spec import AdapterKey

_START_S = 0.001
"""From the decision to the first byte."""


class CopyLink:
    """A link of one bandwidth, which all copies share in the order of their start."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0
        self._copies: deque[tuple[float, AdapterKey, int]] = deque()
        self.bytes_in_flight = 0

    @property
    def next_arrival_s(self) -> float:
        """When the next copy is done; infinite if none is under way."""
        return self._copies[0][0] if self._copies else float("inf")

    def start(self, copies: Iterable[tuple[AdapterKey, int]], now: float) -> None:
        """Queue copies of so many bytes each."""
        for key, num_bytes in copies:
            start_s = max(now + _START_S, self._free_at_s)
            self._free_at_s = start_s + num_bytes / self._bytes_per_s
            self._copies.append((self._free_at_s, key, num_bytes))
            self.bytes_in_flight += num_bytes

    def arrived(self, now: float) -> list[AdapterKey]:
        """Adapters whose copies are done; each is told once."""
        done = []
        while self._copies and self._copies[0][0] <= now:
            _, key, num_bytes = self._copies.popleft()
            self.bytes_in_flight -= num_bytes
            done.append(key)
        return done
