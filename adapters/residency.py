"""Which adapters are in the device's memory: a state machine over bytes and leases, no tensors.

    absent ── start_load ──> loading ── finish_load ──> resident
      ^                         │                          │
      └─────── fail_load ───────┴───── evicted by a load ──┘

A second request for an adapter that is loading joins that load; one key never loads twice at a
time. Resident adapters without a lease may be evicted, the least recently used first.
"""

from dataclasses import dataclass
from enum import Enum, auto

from loraplex.adapters.errors import ResidencyViolation
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

    @property
    def evictable(self) -> bool:
        return self.state is State.RESIDENT and self.leases == 0


class Residency:
    """Accounts for the memory of adapters. Belongs to one thread."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._held_bytes = 0
        self._evictable_bytes = 0
        # From the least to the most recently used.
        self._entries: dict[AdapterKey, _Entry] = {}

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

    def state(self, key: AdapterKey) -> State:
        """Where the adapter is now."""
        entry = self._entries.get(key)
        return State.ABSENT if entry is None else entry.state

    def can_load(self, num_bytes: int) -> bool:
        """True if a load of this size fits, once unleased adapters are evicted."""
        return num_bytes <= self.loadable_bytes

    def start_load(self, key: AdapterKey, num_bytes: int) -> tuple[AdapterKey, ...]:
        """Reserve memory for an absent adapter; return those that are evicted for it, in order.

        Raises:
            ResidencyViolation: the adapter is not absent, or `can_load` is false.
        """
        if key in self._entries:
            raise ResidencyViolation(f"adapter {key.digest} is {self.state(key).name.lower()}")
        if num_bytes < 0 or not self.can_load(num_bytes):
            raise ResidencyViolation(
                f"{num_bytes} bytes cannot be made free of {self._capacity_bytes}"
            )
        evicted = self._evict(num_bytes)
        self._entries[key] = _Entry(num_bytes)
        self._held_bytes += num_bytes
        return evicted

    def finish_load(self, key: AdapterKey) -> None:
        """The adapter arrived and may be leased."""
        entry = self._expect(key, State.LOADING)
        entry.state = State.RESIDENT
        self._evictable_bytes += entry.num_bytes
        self._touch(key)

    def fail_load(self, key: AdapterKey) -> None:
        """The adapter did not arrive: its memory is free again and another load may be tried."""
        self._held_bytes -= self._expect(key, State.LOADING).num_bytes
        del self._entries[key]

    def acquire(self, key: AdapterKey) -> None:
        """Take a lease on a resident adapter, which keeps it from being evicted."""
        entry = self._expect(key, State.RESIDENT)
        if entry.leases == 0:
            self._evictable_bytes -= entry.num_bytes
        entry.leases += 1
        self._touch(key)

    def release(self, key: AdapterKey) -> None:
        """Give a lease back; this counts as a use."""
        entry = self._expect(key, State.RESIDENT)
        if entry.leases == 0:
            raise ResidencyViolation(f"adapter {key.digest} has no lease to release")
        entry.leases -= 1
        if entry.leases == 0:
            self._evictable_bytes += entry.num_bytes
        self._touch(key)

    def check(self) -> None:
        """Assert the conservation laws; holds between any two calls."""
        assert self._held_bytes == sum(entry.num_bytes for entry in self._entries.values())
        assert 0 <= self._held_bytes <= self._capacity_bytes
        evictable = sum(entry.num_bytes for entry in self._entries.values() if entry.evictable)
        assert self._evictable_bytes == evictable
        assert all(
            entry.leases == 0 or (entry.leases > 0 and entry.state is State.RESIDENT)
            for entry in self._entries.values()
        )

    def _evict(self, num_bytes: int) -> tuple[AdapterKey, ...]:
        evicted: list[AdapterKey] = []
        missing = num_bytes - self.free_bytes
        for key, entry in self._entries.items():
            if missing <= 0:
                break
            if entry.evictable:
                evicted.append(key)
                missing -= entry.num_bytes
        for key in evicted:
            num_evicted = self._entries.pop(key).num_bytes
            self._held_bytes -= num_evicted
            self._evictable_bytes -= num_evicted
        return tuple(evicted)

    def _touch(self, key: AdapterKey) -> None:
        self._entries[key] = self._entries.pop(key)

    def _expect(self, key: AdapterKey, state: State) -> _Entry:
        entry = self._entries.get(key)
        if entry is None or entry.state is not state:
            raise ResidencyViolation(
                f"adapter {key.digest} is {self.state(key).name.lower()}, not {state.name.lower()}"
            )
        return entry
