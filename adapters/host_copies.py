"""Which adapters the host's memory keeps, so that their next load need not read the store."""

from collections import Counter
from collections.abc import Callable, KeysView
from dataclasses import dataclass

from loraplex.adapters.demand import Demand
from loraplex.adapters.eviction import Eviction, LeastWorth
from loraplex.adapters.last_evictions import LastEvictions
from loraplex.adapters.reservations import Granted, Promises, Reservations
from loraplex.adapters.residency_counts import Cause
from loraplex.adapters.room import Room
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

    Floors and caps hold here as on the device: a floor's copies leave for others' reads no more, a
    tenant at its cap gives up its own first, and what alone exceeds the cap is not kept.

    A copy is leased while it is read from the store, and while it is copied to the device.
    """

    def __init__(self, memory: HostMemory | None, last_evictions: LastEvictions) -> None:
        """No memory keeps nothing; `last_evictions` is told of what goes."""
        self._tier = Tier(0 if memory is None else memory.capacity_bytes)
        self._promises = Promises(self._tier.capacity_bytes)
        self._num_bytes = None if memory is None else memory.num_bytes
        self._eviction = (memory and memory.eviction) or LeastWorth()
        self._evictions: list[AdapterKey] = []
        self._keeps: list[AdapterKey] = []
        self._last_evictions = last_evictions
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

    @property
    def granted(self) -> Granted:
        """What of this memory is promised to whom, and what is not."""
        return self._promises.granted

    def reserve(self, asked: Reservations) -> None:
        """Let these floors and caps of this memory hold, unless they are older than those that do.
        A cap that is exceeded already holds from the next read on."""
        if self._promises.renew(asked.of_host()):
            self._tier.set_floors(self._promises.floors)

    def is_protected(self, key: AdapterKey) -> bool:
        """True if a floor keeps the copy from others' reads."""
        return self._tier.is_protected(key)

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
        room = Room(self._tier, self._promises, self._eviction, demand)
        if num_bytes is None or num_bytes > room.for_load(key.tenant, is_prefetch=False):
            return False
        for victim in room.victims(num_bytes, key.tenant, is_prefetch=False):
            self._evict(victim, "load")
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
        self._evict(key, "drop")
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

    def _evict(self, key: AdapterKey, cause: Cause) -> None:
        self._remove(key)
        self._eviction.evicted(key)
        self.evictions[cause] += 1
        self._last_evictions.note(key, "host", cause)

    def _remove(self, key: AdapterKey) -> None:
        self._tier.remove(key)
        if key in self._keeps:
            self._keeps.remove(key)
        else:
            self._evictions.append(key)


_NO_ORDERS = HostOrders()
