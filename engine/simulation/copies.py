"""Copies of adapters from the host to the device: one link, one copy after the other."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, inf
from typing import Protocol

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.plan import StepPlan
from loraplex.engine.transfers_port import AdapterTransfers, Arrival

_LATENCY_S = 0.001
"""From the decision to the first byte."""
_TICK_S = 5e-7
"""A clock that was set to an arrival's time finds it, whatever was rounded."""
NUM_LAYERS = 32
"""Of each adapter, copied one after the other."""


class Link(AdapterTransfers, Protocol):
    """What a simulation asks beyond what an engine does."""

    @property
    def next_arrival_s(self) -> float:
        """When the next adapter is there, if nothing more is started; infinite if none will be."""
        ...

    @property
    def next_layer_s(self) -> float:
        """The same of the next layer of one; now, if one may be used in part which `progress` has
        not told yet."""
        ...

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of adapters that are being copied beside the steps."""
        ...

    def take_stall_ms(self) -> float:
        """How much longer the next step takes because it waits for copies; told once."""
        ...

    def layer_arrival_s(self, key: AdapterKey, layer: int) -> float:
        """When a layer of an adapter is there, if nothing more is started; infinite if the step's
        grant does not suffice for it."""
        ...

    def progress(self) -> Iterator[tuple[AdapterKey, int]]:
        """Adapters on their way that may be used in part, and how many layers of each have come."""
        ...


@dataclass(slots=True)
class _Copy:
    key: AdapterKey
    left_bytes: float
    from_s: float
    """When its first byte may be copied."""
    done_s: float = 0.0
    is_told: bool = False
    is_open_told: bool = False


class CopyLink:
    """A link of one bandwidth. Loads are copied in the order of their start; prefetches in the
    time that loads leave, so that one which is under way pauses for a load. While others decode no
    more is copied than is granted with each step. Where the engine's link lets the last layer take
    too much and the next grants less, this one stops within a layer: on average the same.

    What is copied next may be used in part, as the engine's slots are open as soon as an adapter
    was read: of loads one, of prefetches one.
    """

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
        self._granted_bytes = inf

    @property
    def next_arrival_s(self) -> float:
        """See `Link`."""
        self._advance()
        return min((done_s for copy, done_s in self._ends() if not copy.is_told), default=inf)

    @property
    def bytes_in_flight(self) -> int:
        """See `Link`."""
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
        self._loads.extend(map(self._new, plan.loads))
        self._prefetches.extend(map(self._new, plan.prefetches))
        self._granted_bytes = inf if plan.copy_bytes is None else plan.copy_bytes

    def arrivals(self) -> list[Arrival]:
        """See `AdapterTransfers.arrivals`."""
        self._advance()
        arrived = []
        now = self._clock() + _TICK_S
        for copy, done_s in self._ends():
            if done_s <= now and not copy.is_told:
                copy.is_told = True
                arrived.append(Arrival(copy.key))
        while self._copied and self._copied[0].is_told:
            self._copied.popleft()
        return arrived

    def take_stall_ms(self) -> float:
        """Steps wait for nothing."""
        return 0.0

    def layer_arrival_s(self, key: AdapterKey, layer: int) -> float:
        """See `Link`."""
        at_s, before_bytes = self._at_s, 0.0
        for copy in (*self._loads, *self._prefetches):
            at_s = max(at_s, copy.from_s)
            if copy.key == key:
                own_bytes = copy.left_bytes - self._bytes_behind(key, layer)
                tick_bytes = _TICK_S * self._bytes_per_s
                if own_bytes <= tick_bytes:
                    return min(at_s, self._at_s)  # it has come, whatever goes first now
                if before_bytes + own_bytes > self._granted_bytes + tick_bytes:
                    return inf
                return at_s + own_bytes / self._bytes_per_s
            before_bytes += copy.left_bytes
            at_s += copy.left_bytes / self._bytes_per_s
        return 0.0

    def progress(self) -> Iterator[tuple[AdapterKey, int]]:
        """See `Link`."""
        self._advance()
        for copy in self._open():
            copy.is_open_told = True
            yield copy.key, NUM_LAYERS - self._num_missing(copy)

    @property
    def next_layer_s(self) -> float:
        """See `Link`."""
        self._advance()
        if any(not copy.is_open_told for copy in self._open()):
            return self._clock()
        coming = self._loads or self._prefetches
        missing = self._num_missing(coming[0]) if coming else 0
        return self.layer_arrival_s(coming[0].key, NUM_LAYERS - missing) if missing else inf

    def _new(self, key: AdapterKey) -> _Copy:
        return _Copy(key, self._num_bytes(key), self._clock() + _LATENCY_S)

    def _open(self) -> Iterator[_Copy]:
        """What may be used in part."""
        yield from self._copied
        for queue in (self._loads, self._prefetches):
            if queue:
                yield queue[0]

    def _bytes_behind(self, key: AdapterKey, layer: int) -> float:
        return self._num_bytes(key) * (NUM_LAYERS - 1 - layer) / NUM_LAYERS

    def _num_missing(self, copy: _Copy) -> int:
        """Layers that have not come."""
        layer_bytes = self._num_bytes(copy.key) / NUM_LAYERS
        return max(0, ceil((copy.left_bytes - _TICK_S * self._bytes_per_s) / layer_bytes))

    def _ends(self) -> Iterator[tuple[_Copy, float]]:
        """Copies, each with the time at which all of its adapter is there."""
        for copy in self._copied:
            yield copy, copy.done_s
        for copy in (*self._loads, *self._prefetches):
            yield copy, self.layer_arrival_s(copy.key, NUM_LAYERS - 1)

    def _advance(self) -> None:
        """Copy until now."""
        now = self._clock()
        while queue := self._loads or self._prefetches:
            copy = queue[0]
            at_s = max(self._at_s, copy.from_s)
            due_bytes = min(copy.left_bytes, self._granted_bytes)
            done_s = at_s + due_bytes / self._bytes_per_s
            is_late = done_s > now + _TICK_S
            if is_late:
                due_bytes = max(0.0, now - at_s) * self._bytes_per_s
            copy.left_bytes -= due_bytes
            self._granted_bytes -= due_bytes
            if is_late or copy.left_bytes > 0:
                break
            queue.popleft()
            copy.done_s = self._at_s = done_s
            self._copied.append(copy)
        self._at_s = max(self._at_s, now)

    def _take(self, key: AdapterKey) -> None:
        """Give a copy up, if it is on its way."""
        for queue in (self._loads, self._prefetches, self._copied):
            copy = _find(queue, key)
            if copy is not None:
                queue.remove(copy)


class CopiesInside:
    """Loads inside steps, as engines make them that load when a request needs it: all that decode
    wait for the copies."""

    bytes_in_flight = 0
    next_layer_s = float("inf")

    def __init__(
        self,
        bytes_per_s: float,
        num_bytes: Callable[[AdapterKey], int],
        clock: Callable[[], float],
    ) -> None:
        """As `CopyLink`."""
        self._bytes_per_s = bytes_per_s
        self._num_bytes = num_bytes
        self._clock = clock
        self._ready_s: dict[AdapterKey, float] = {}
        self._stall_s = 0.0

    @property
    def next_arrival_s(self) -> float:
        """See `Link`."""
        return min(self._ready_s.values(), default=float("inf"))

    def start(self, plan: StepPlan) -> None:
        """Copy all of it, one after the other."""
        for key in plan.evictions:
            self._ready_s.pop(key, None)
        for key in (*plan.loads, *plan.prefetches):
            self._stall_s += self._num_bytes(key) / self._bytes_per_s + _LATENCY_S
            self._ready_s[key] = self._clock() + self._stall_s

    def arrivals(self) -> list[Arrival]:
        """See `AdapterTransfers.arrivals`."""
        ready = [key for key, at in self._ready_s.items() if at <= self._clock() + _TICK_S]
        for key in ready:
            del self._ready_s[key]
        return [Arrival(key) for key in ready]

    def take_stall_ms(self) -> float:
        """See `Link`; while nothing runs, nobody waits."""
        stall_ms, self._stall_s = self._stall_s * 1e3, 0.0
        return stall_ms

    def layer_arrival_s(self, key: AdapterKey, layer: int) -> float:  # noqa: ARG002  of the protocol
        """All come at once."""
        return self._ready_s.get(key, 0.0)

    def progress(self) -> Iterator[tuple[AdapterKey, int]]:
        """Nothing is used in part."""
        return iter(())


def _find(queue: deque[_Copy], key: AdapterKey) -> _Copy | None:
    return next((copy for copy in queue if copy.key == key), None)
