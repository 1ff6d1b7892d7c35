"""Copies of adapters from the host to the device: one link, one copy after the other."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.plan import StepPlan
from loraplex.engine.transfers_port import AdapterTransfers, Arrival

_LATENCY_S = 0.001
"""From the decision to the first byte."""
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
        """The same of the next layer of one."""
        ...

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of adapters that are being copied beside the steps."""
        ...

    def take_stall_ms(self) -> float:
        """How much longer the next step takes because it waits for copies; told once."""
        ...

    def layer_arrival_s(self, key: AdapterKey, layer: int) -> float:
        """When a layer of an adapter is there, if nothing more is started."""
        ...

    def progress(self) -> Iterator[tuple[AdapterKey, int]]:
        """Adapters on their way of which a layer has come, and how many have."""
        ...


@dataclass(slots=True)
class _Copy:
    key: AdapterKey
    left_bytes: float
    done_s: float = 0.0
    is_told: bool = False
    num_layers: int = 0
    """That have come: what a load that goes first makes late are the others."""


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
        """See `Link`."""
        self._advance()
        untold = (usable_s for copy, usable_s in self._usable() if not copy.is_told)
        return min(untold, default=float("inf"))

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
        self._loads.extend(_Copy(key, self._num_bytes(key)) for key in plan.loads)
        self._prefetches.extend(_Copy(key, self._num_bytes(key)) for key in plan.prefetches)

    def arrivals(self) -> list[Arrival]:
        """See `AdapterTransfers.arrivals`."""
        self._advance()
        arrived = []
        # Half a microsecond, so that a clock which was set to an arrival's time finds it.
        now = self._clock() + 5e-7
        for copy, usable_s in self._usable():
            if usable_s <= now and not copy.is_told:
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
        for copy, done_s in self._usable():
            if copy.key == key and layer >= copy.num_layers:
                left_bytes = self._num_bytes(key) * (NUM_LAYERS - 1 - layer) / NUM_LAYERS
                return done_s - left_bytes / self._bytes_per_s
        return 0.0

    def progress(self) -> Iterator[tuple[AdapterKey, int]]:
        """See `Link`."""
        self._advance()
        for copy, done_s in self._usable():
            copy.num_layers = NUM_LAYERS - self._missing(copy, done_s)
            if copy.num_layers:
                yield copy.key, copy.num_layers

    @property
    def next_layer_s(self) -> float:
        """See `Link`."""
        for copy, done_s in self._usable():
            missing = self._missing(copy, done_s)
            if missing > 0:
                return done_s - (missing - 1) * self._layer_s(copy)
        return float("inf")

    def _layer_s(self, copy: _Copy) -> float:
        return self._num_bytes(copy.key) / NUM_LAYERS / self._bytes_per_s

    def _missing(self, copy: _Copy, done_s: float) -> int:
        """Layers that have not come, of a copy that will be there at `done_s`."""
        missing = ceil((done_s - self._clock() - 5e-7) / self._layer_s(copy))
        return min(max(0, missing), NUM_LAYERS - copy.num_layers)

    def _usable(self) -> Iterator[tuple[_Copy, float]]:
        """Copies, each with the time at which its adapter may be used."""
        for copy in self._copied:
            yield copy, copy.done_s
        done_s = self._at_s + _LATENCY_S
        for copy in (*self._loads, *self._prefetches):
            done_s += copy.left_bytes / self._bytes_per_s
            yield copy, done_s

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
            copy.done_s = done_s + _LATENCY_S
            self._copied.append(copy)
            self._at_s = done_s
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
        ready = [key for key, at in self._ready_s.items() if at <= self._clock() + 5e-7]
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
