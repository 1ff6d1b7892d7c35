"""Which adapters are in the device's memory: a state machine over bytes and leases, no tensors.

    absent ── start_load ──> loading ── finish_load ──> resident
      ^                         │                          │
      └─────── fail_load ───────┴───── evicted by a load ──┘

A second request for an adapter that is loading joins that load; one key never loads twice at a
time. Resident adapters without a lease may be evicted, by default those first that are worth least.
A lease may be taken while the adapter is on its way, for a request that must find it when it comes.

What was prefetched is *unclaimed* until a request needs it. It takes memory from nobody: until then
it may be evicted, on its way too, so that a prefetch never changes what `can_load`. Whoever copies
may go on for a while after that: then the device holds more than is accounted for here, by what is
said at `Transfers`.
"""

from dataclasses import dataclass
from enum import Enum, auto

from loraplex.adapters.demand import Demand
from loraplex.adapters.errors import ResidencyViolation
from loraplex.adapters.eviction import Eviction, LeastWorth
from loraplex.adapters.spec import AdapterKey


class State(Enum):
    """Where an adapter is."""

    ABSENT = auto()
    LOADING = auto()
    RESIDENT = auto()


@dataclass(slots=True)
class _Entry:
    num_bytes: int
    state: State = State.LOADING
    leases: int = 0
    is_unclaimed: bool = False
    """It was prefetched, and no request has needed it yet."""

    @property
    def evictable(self) -> bool:
        return self.leases == 0 and (self.state is State.RESIDENT or self.is_unclaimed)


@dataclass(slots=True)
class PrefetchCounts:
    """What became of prefetches; what is neither claimed nor wasted is still there."""

    num_started: int = 0
    num_claimed: int = 0
    num_wasted: int = 0
    started_bytes: int = 0
    wasted_bytes: int = 0


class Residency:
    """Accounts for the memory of adapters. Belongs to one thread."""

    def __init__(self, capacity_bytes: int, eviction: Eviction | None = None) -> None:
        self._capacity_bytes = capacity_bytes
        self._eviction = eviction or LeastWorth()
        self.demand = Demand()
        """What requests ask for. The scheduler tells it."""
        self.prefetched = PrefetchCounts()
        self._held_bytes = 0
        self._evictable_bytes = 0
        # From the least to the most recently used.
        self._entries: dict[AdapterKey, _Entry] = {}
        self._version = 0
        self._dropped: set[AdapterKey] = set()

    @property
    def capacity_bytes(self) -> int:
        """Memory for adapters, in use or not."""
        return self._capacity_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of resident adapters and of those that are loading."""
        return self._held_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes that a load can take without evicting anything."""
        return self._capacity_bytes - self._held_bytes

    @property
    def loadable_bytes(self) -> int:
        """Bytes that a load can take, once unleased adapters are evicted."""
        return self.free_bytes + self._evictable_bytes

    @property
    def num_leases(self) -> int:
        """Leases on all adapters together."""
        return sum(entry.leases for entry in self._entries.values())

    @property
    def version(self) -> int:
        """A number that changes with `state` of any adapter, and with `is_unclaimed` of any that is
        on its way."""
        return self._version

    def state(self, key: AdapterKey) -> State:
        """Where the adapter is now."""
        entry = self._entries.get(key)
        return State.ABSENT if entry is None else entry.state

    def is_unclaimed(self, key: AdapterKey) -> bool:
        """True if it was prefetched, is there or on its way, and no request has needed it yet."""
        entry = self._entries.get(key)
        return entry is not None and entry.is_unclaimed

    def can_load(self, num_bytes: int) -> bool:
        """True if a load of this size fits, once unleased adapters are evicted."""
        return num_bytes <= self.loadable_bytes

    def victims(self, num_bytes: int) -> tuple[AdapterKey, ...]:
        """What a load of this size would evict, in order."""
        missing = num_bytes - self.free_bytes
        if missing <= 0:
            return ()
        candidates = [key for key, entry in self._entries.items() if entry.evictable]
        victims: list[AdapterKey] = []
        for key in self._eviction.order(candidates, self.demand):
            if missing <= 0:
                break
            victims.append(key)
            missing -= self._entries[key].num_bytes
        return tuple(victims)

    def start_load(
        self, key: AdapterKey, num_bytes: int, *, is_prefetch: bool = False
    ) -> tuple[AdapterKey, ...]:
        """Reserve memory for an absent adapter; return those that are evicted for it, in order.
        They may be on their way, if they were prefetched.

        Raises:
            ResidencyViolation: the adapter is not absent, or `can_load` is false.
        """
        if key in self._entries:
            raise ResidencyViolation(f"adapter {key.digest} is {self.state(key).name.lower()}")
        if num_bytes < 0 or not self.can_load(num_bytes):
            raise ResidencyViolation(
                f"{num_bytes} bytes cannot be made free of {self._capacity_bytes}"
            )
        evicted = self.victims(num_bytes)
        for victim in evicted:
            self._evictable_bytes -= self._entries[victim].num_bytes
            self._remove(victim)
            self._eviction.evicted(victim)
        self._entries[key] = _Entry(num_bytes, is_unclaimed=is_prefetch)
        self._version += 1
        self._held_bytes += num_bytes
        if is_prefetch:
            self._evictable_bytes += num_bytes
            self.prefetched.num_started += 1
            self.prefetched.started_bytes += num_bytes
        self._eviction.loaded(key, num_bytes)
        return evicted

    def claim(self, key: AdapterKey) -> None:
        """A request needs what is being prefetched: from now on it is a load like any other."""
        entry = self._expect(key, State.LOADING)
        if not entry.is_unclaimed:
            raise ResidencyViolation(f"adapter {key.digest} was not prefetched")
        self._evictable_bytes -= entry.num_bytes
        entry.is_unclaimed = False
        self._version += 1
        self.prefetched.num_claimed += 1

    def finish_load(self, key: AdapterKey) -> None:
        """The adapter arrived and may be leased."""
        entry = self._expect(key, State.LOADING)
        if not entry.is_unclaimed and not entry.leases:
            self._evictable_bytes += entry.num_bytes
        entry.state = State.RESIDENT
        self._version += 1
        self._touch(key)

    def fail_load(self, key: AdapterKey) -> None:
        """The adapter did not arrive: its memory is free again, leases on it are gone, and another
        load may be tried."""
        entry = self._expect(key, State.LOADING)
        if entry.is_unclaimed:
            self._evictable_bytes -= entry.num_bytes
        self._remove(key)

    def hold(self, key: AdapterKey) -> None:
        """Take a lease on what is loading and not unclaimed: once it is there, it stays. It is no
        use of it, other than `acquire`."""
        entry = self._expect(key, State.LOADING)
        if entry.is_unclaimed:
            raise ResidencyViolation(f"adapter {key.digest} is prefetched and not claimed")
        entry.leases += 1

    def acquire(self, key: AdapterKey) -> None:
        """Take a lease on a resident adapter, which keeps it from being evicted, and claims it."""
        entry = self._expect(key, State.RESIDENT)
        if entry.leases == 0:
            self._evictable_bytes -= entry.num_bytes
        entry.leases += 1
        if entry.is_unclaimed:
            entry.is_unclaimed = False
            self.prefetched.num_claimed += 1
        self._eviction.used(key)
        self._touch(key)

    def release(self, key: AdapterKey) -> None:
        """Give a lease back; this counts as a use."""
        entry = self._entries.get(key)
        if entry is None or entry.leases == 0:
            state = self.state(key).name.lower()
            raise ResidencyViolation(f"adapter {key.digest}, {state}, has no lease to release")
        entry.leases -= 1
        if entry.evictable:
            self._evictable_bytes += entry.num_bytes
        self._touch(key)

    def drop(self, key: AdapterKey) -> None:
        """Nobody new will ask for it: free its memory, once nobody uses it or waits for it."""
        if key in self._entries:
            self._dropped.add(key)

    def take_freed(self) -> tuple[AdapterKey, ...]:
        """Free what was dropped and nobody uses or waits for, and return it."""
        freed = [
            key
            for key in self._dropped
            if self._entries[key].evictable and not self.demand.is_awaited(key)
        ]
        for key in freed:
            self._evictable_bytes -= self._entries[key].num_bytes
            self._remove(key)
            self._eviction.evicted(key)
        return tuple(freed)

    def check(self) -> None:
        """Assert the conservation laws; holds between any two calls."""
        assert self._held_bytes == sum(entry.num_bytes for entry in self._entries.values())
        assert 0 <= self._held_bytes <= self._capacity_bytes
        evictable = sum(entry.num_bytes for entry in self._entries.values() if entry.evictable)
        assert self._evictable_bytes == evictable
        assert all(
            entry.leases == 0
            or (entry.leases > 0 and (entry.state is State.RESIDENT or not entry.is_unclaimed))
            for entry in self._entries.values()
        )
        num_unclaimed = sum(entry.is_unclaimed for entry in self._entries.values())
        ended = self.prefetched.num_claimed + self.prefetched.num_wasted
        assert self.prefetched.num_started == ended + num_unclaimed
        assert self._dropped <= self._entries.keys(), "what is gone is to be dropped"

    def _remove(self, key: AdapterKey) -> None:
        entry = self._entries.pop(key)
        self._dropped.discard(key)
        self._version += 1
        self._held_bytes -= entry.num_bytes
        if entry.is_unclaimed:
            self.prefetched.num_wasted += 1
            self.prefetched.wasted_bytes += entry.num_bytes

    def _touch(self, key: AdapterKey) -> None:
        self._entries[key] = self._entries.pop(key)

    def _expect(self, key: AdapterKey, state: State) -> _Entry:
        entry = self._entries.get(key)
        if entry is None or entry.state is not state:
            raise ResidencyViolation(
                f"adapter {key.digest} is {self.state(key).name.lower()}, not {state.name.lower()}"
            )
        return entry
