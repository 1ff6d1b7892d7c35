"""Copies of adapters from the host to the device: one link, one copy after the other."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.plan import StepPlan
from loraplex.engine.transfers_port import Arrival

_LATENCY_S = 0.001
"""From the decision to the first byte."""


@dataclass(slots=True)
class _Copy:
    key: AdapterKey
    left_bytes: float
    arrives_s: float = 0.0


class CopyLink:
    """A link of one bandwidth. Loads are copied in the order of their start; prefetches in the
    time that loads leave, so that one which is under way pauses for a load."""

    def __init__(
        self,
        bytes_per_s: float,
        num_bytes: Callable[[AdapterKey], int],
        clock: Callable[[], float],
    ) -> None:
        """`num_bytes` tells an adapter's size; `clock` the simulated time in seconds."""
        self._bytes_per_s = bytes_per_s
        self._num_bytes = num_bytes
        self._clock = clock
        self._loads: deque[_Copy] = deque()
        self._prefetches: deque[_Copy] = deque()
        self._copied: deque[_Copy] = deque()
        self._at_s = 0.0

    @property
    def next_arrival_s(self) -> float:
        """When the next copy is done, if nothing more is started; infinite if none is under way."""
        self._advance()
        if self._copied:
            return self._copied[0].arrives_s
        for queue in (self._loads, self._prefetches):
            if queue:
                return self._at_s + queue[0].left_bytes / self._bytes_per_s + _LATENCY_S
        return float("inf")

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of the adapters that have not arrived."""
        self._advance()
        queues = (self._loads, self._prefetches, self._copied)
        return sum(self._num_bytes(copy.key) for queue in queues for copy in queue)

    def start(self, plan: StepPlan) -> None:
        """See `AdapterTransfers.start`."""
        self._advance()
        for key in plan.evictions:
            self._take(key)
        for key in plan.claims:
            copy = _find(self._prefetches, key)
            if copy is not None:
                self._prefetches.remove(copy)
                self._loads.append(copy)
        self._loads.extend(_Copy(key, self._num_bytes(key)) for key in plan.loads)
        self._prefetches.extend(_Copy(key, self._num_bytes(key)) for key in plan.prefetches)

    def arrivals(self) -> list[Arrival]:
        """See `AdapterTransfers.arrivals`."""
        self._advance()
        arrived = []
        # Half a microsecond, so that a clock which was set to an arrival's time finds it.
        while self._copied and self._copied[0].arrives_s <= self._clock() + 5e-7:
            arrived.append(Arrival(self._copied.popleft().key))
        return arrived

    def _advance(self) -> None:
        """Copy until now."""
        now = self._clock()
        while queue := self._loads or self._prefetches:
            copy = queue[0]
            done_s = self._at_s + copy.left_bytes / self._bytes_per_s
            if done_s > now:
                copy.left_bytes -= max(0.0, now - self._at_s) * self._bytes_per_s
                break
            queue.popleft()
            copy.arrives_s = done_s + _LATENCY_S
            self._copied.append(copy)
            self._at_s = done_s
        self._at_s = max(self._at_s, now)

    def _take(self, key: AdapterKey) -> None:
        """Give a prefetch up, if it is on its way."""
        for queue in (self._prefetches, self._copied):
            copy = _find(queue, key)
            if copy is not None:
                queue.remove(copy)


def _find(queue: deque[_Copy], key: AdapterKey) -> _Copy | None:
    return next((copy for copy in queue if copy.key == key), None)
