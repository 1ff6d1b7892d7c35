"""Which adapters the host's memory keeps, so that their next load need not read the store."""

from collections import Counter
from collections.abc import Callable, KeysView
from dataclasses import dataclass

from loraplex.adapters.demand import Demand
from loraplex.adapters.eviction import Eviction, LeastWorth
from loraplex.adapters.residency_counts import Cause
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.tier import Entry, Tier


@dataclass(frozen=True, slots=True)
class HostMemory:
    """What the host has for adapters."""

    capacity_bytes: int
    num_bytes: Callable[[str], int | None]
    """By digest, what an adapter takes there; None if that cannot be told: it is not kept."""
    eviction: Eviction | None = None


@dataclass(frozen=True, slots=True)
class HostOrders:
    """What is to be done with the host's memory; `evictions` come first."""

    evictions: tuple[AdapterKey, ...] = ()
    keeps: tuple[AdapterKey, ...] = ()
    """Of what is being read from the store, what is to be kept once it has been."""


class HostCopies:
    """The tier between store and device. It never stands in the way: what finds no room is read,
    used and not kept.

    A copy is leased while it is read from the store, and while it is copied to the device.
    """

    def __init__(self, memory: HostMemory | None) -> None:
        """None keeps nothing."""
        self._tier = Tier(0 if memory is None else memory.capacity_bytes)
        self._num_bytes = None if memory is None else memory.num_bytes
        self._eviction = (memory and memory.eviction) or LeastWorth()
        self._evictions: list[AdapterKey] = []
        self._keeps: list[AdapterKey] = []
        self.evictions: Counter[Cause] = Counter()
        """Copies that were given up, by cause."""

    @property
    def capacity_bytes(self) -> int:
        """Memory of the host for adapters, in use or not."""
        return self._tier.capacity_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of what is kept, and of what is being read to be kept."""
        return self._tier.held_bytes

    @property
    def keys(self) -> KeysView[AdapterKey]:
        """What is kept or being read to be kept, as a view that follows changes."""
        return self._tier.keys

    def get(self, key: AdapterKey) -> Entry | None:
        """The copy, if there is one; nobody else changes it."""
        return self._tier.get(key)

    def begin(self, key: AdapterKey, demand: Demand) -> bool:
        """A load begins. True if it comes from here; else it is read from the store, and kept if
        there is room for it."""
        if key in self._tier:
            self._tier.lease(key, 1)
            return True
        num_bytes = self._num_bytes(key.digest) if self._num_bytes is not None else None
        if num_bytes is None or num_bytes > self._tier.free_bytes + self._tier.evictable_bytes:
            return False
        if num_bytes > self._tier.free_bytes:
            self._make_room(num_bytes, demand)
        self._tier.add(key, Entry(num_bytes, leases=1))
        self._eviction.loaded(key, num_bytes)
        self._keeps.append(key)
        return False

    def end(self, key: AdapterKey, *, has_come: bool) -> None:
        """The load has ended, or was given up; what was being read then is not kept."""
        entry = self._tier.get(key)
        if entry is None:
            return
        if not entry.is_there and not has_come:
            self._remove(key)
            return
        self._tier.arrive(key)
        self._tier.lease(key, -1)
        self._tier.touch(key)

    def use(self, key: AdapterKey) -> None:
        """A request uses the adapter, wherever it is."""
        if key in self._tier:
            self._eviction.used(key)
            self._tier.touch(key)

    def drop(self, key: AdapterKey) -> bool:
        """Give its copy up; False if it is in use."""
        entry = self._tier.get(key)
        if entry is None:
            return True
        if not entry.is_evictable:
            return False
        self._remove(key)
        self._eviction.evicted(key)
        self.evictions["drop"] += 1
        return True

    def take_orders(self) -> HostOrders:
        """What is to be done since the last call."""
        if not self._evictions and not self._keeps:
            return _NO_ORDERS
        orders = HostOrders(tuple(self._evictions), tuple(self._keeps))
        self._evictions, self._keeps = [], []
        return orders

    def check(self, loading: set[AdapterKey]) -> None:
        """Assert the conservation laws; `loading` are all that are on their way to the device."""
        self._tier.check()
        for key, entry in self._tier.items():
            assert entry.leases == int(key in loading), "a copy is leased, and nobody copies it"
            assert entry.is_there or key in loading, "a copy is awaited that nobody reads"

    def _make_room(self, num_bytes: int, demand: Demand) -> None:
        candidates = list(self._tier.candidates(None))
        for key in self._eviction.order(candidates, demand):
            self._remove(key)
            self._eviction.evicted(key)
            self.evictions["load"] += 1
            if num_bytes <= self._tier.free_bytes:
                break

    def _remove(self, key: AdapterKey) -> None:
        self._tier.remove(key)
        if key in self._keeps:
            self._keeps.remove(key)
        else:
            self._evictions.append(key)


_NO_ORDERS = HostOrders()
