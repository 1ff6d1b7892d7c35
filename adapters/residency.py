"""Which adapters are in memory: a state machine over bytes and leases, no tensors.

    absent ── start_load ──> loading ── finish_load ──> resident        the device's memory
      ^                         │                          │
      └─────── fail_load ───────┴── evicted by a load ─────┘
                                │                          │
    store ────── read ──────> host ── evicted by a read ──> store       the host's memory

A load reads its adapter from the store, unless the host has it, and leaves it on the host if there
is room for it among what nobody uses; so what the device lost comes back sooner. The host's memory
keeps no load from starting.

A second request for an adapter that is loading joins that load; one key never loads twice at a
time. Resident adapters without a lease may be evicted, by default those first that are worth least.
A lease may be taken while the adapter is on its way: for a request that must find it when it comes,
or, once the adapter is *open*, for one that already runs on the layers that have come.

What was prefetched is *unclaimed* until a request needs it. It takes memory from nobody: until then
it may be evicted, on its way too, so that a prefetch never changes what `can_load`. Whoever copies
may go on for a while after that: then the device holds more than is accounted for here, by what is
said at `Transfers`. What is *pinned* is never evicted, and what a tenant's floor protects only by
that tenant's own loads; both are bounded (`reservations`), so that they block nobody for ever.
"""

from collections.abc import Callable, Iterator

from loraplex.adapters.demand import Demand
from loraplex.adapters.errors import ResidencyViolation
from loraplex.adapters.eviction import Eviction, LeastWorth
from loraplex.adapters.host_copies import HostCopies, HostMemory
from loraplex.adapters.last_evictions import LastEvictions
from loraplex.adapters.reservations import Granted, Promises, Reservations
from loraplex.adapters.residency_counts import Cause, PrefetchCause, PrefetchCounts, ResidencyCounts
from loraplex.adapters.residency_state import State
from loraplex.adapters.residency_status import AdapterStatus, status_of
from loraplex.adapters.room import Room
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.tier import Entry, Tier

__all__ = ["HostMemory", "PrefetchCounts", "Residency", "State"]


def _no_clock() -> float:
    return 0.0


class Residency:
    """Accounts for the memory of adapters. Belongs to one thread."""

    def __init__(
        self,
        capacity_bytes: int,
        eviction: Eviction | None = None,
        host: HostMemory | None = None,
        clock: Callable[[], float] = _no_clock,
    ) -> None:
        """`eviction` chooses on the device; `host` is None where adapters are not kept there;
        `clock` tells seconds, for those who look."""
        self._eviction = eviction or LeastWorth()
        self._clock = clock
        self._device = Tier(capacity_bytes)
        self._entries = self._device.entries  # read many times a step
        self.last_evictions = LastEvictions(clock)
        self.host = HostCopies(host, self.last_evictions)
        """What is kept in the host's memory."""
        self.demand = Demand(self.host.keys)
        """What requests ask for. The scheduler tells it."""
        self.prefetched = PrefetchCounts()
        self.counts = ResidencyCounts()
        self._promises = Promises(capacity_bytes)
        self._room = Room(self._device, self._promises, self._eviction, self.demand)
        self._dropped: set[AdapterKey] = set()
        """What is to be freed once nobody uses it or waits for it."""
        self._freed: list[AdapterKey] = []
        self._version = 0

    @property
    def capacity_bytes(self) -> int:
        """Memory of the device for adapters, in use or not."""
        return self._device.capacity_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of resident adapters and of those that are loading."""
        return self._device.held_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes that a load can take without evicting anything."""
        return self._device.free_bytes

    @property
    def granted(self) -> Granted:
        """What is promised to whom, and what is not."""
        return self._promises.granted

    @property
    def num_adapters(self) -> int:
        """Adapters that are resident or loading."""
        return len(self._device)

    @property
    def num_leases(self) -> int:
        """Leases on all adapters together."""
        return sum(entry.leases for _, entry in self._device.items())

    @property
    def version(self) -> int:
        """A number that changes with `state` of any adapter, and as one on its way is claimed or
        becomes open."""
        return self._version

    def state(self, key: AdapterKey) -> State:
        """Where the adapter is now."""
        entry = self._entries.get(key)
        if entry is None:
            return State.ABSENT
        return State.RESIDENT if entry.is_there else State.LOADING

    def is_unclaimed(self, key: AdapterKey) -> bool:
        """True if it was prefetched, is there or on its way, and no request has needed it yet."""
        entry = self._entries.get(key)
        return entry is not None and entry.is_unclaimed

    def get(self, key: AdapterKey) -> Entry | None:
        """How it stands on the device; nobody else changes it. None if it is absent."""
        return self._entries.get(key)

    def loadable_bytes(self, tenant: str | None = None, *, is_prefetch: bool = False) -> int:
        """Bytes that one load for the tenant can take, once what it may evict is evicted. None:
        for whoever it is. A prefetch evicts nothing that any floor protects, its own included."""
        return self._room.for_load(tenant, is_prefetch=is_prefetch)

    def most_loadable_bytes(self, key: AdapterKey) -> int:
        """The most bytes that this adapter can have and still be loaded, were all leases given
        back, as long as pins, floors and caps stay as they are."""
        return self._promises.most_bytes(key)

    def cap(self, tenant: str) -> int | None:
        """The most bytes that the tenant's adapters may hold; None for no cap."""
        return self._promises.cap(tenant)

    def other_pinned_bytes(self, key: AdapterKey) -> int:
        """Bytes of what the adapter's tenant has pinned beside it."""
        return self._promises.other_pinned_bytes(key)

    def unloadable(self) -> list[AdapterKey]:
        """Absent adapters that requests wait for and that can no longer be loaded."""
        awaited = (key for key in self.demand.awaited() if key not in self._device)
        return [
            key for key in awaited if self.demand.num_bytes(key) > self.most_loadable_bytes(key)
        ]

    def can_load(
        self, num_bytes: int, tenant: str | None = None, *, is_prefetch: bool = False
    ) -> bool:
        """True if a load of this size fits, once what it may evict is evicted."""
        return num_bytes <= self.loadable_bytes(tenant, is_prefetch=is_prefetch)

    def victims(
        self, num_bytes: int, tenant: str | None = None, *, is_prefetch: bool = False
    ) -> tuple[AdapterKey, ...]:
        """What a load of this size would evict, in order: of its own tenant until its cap holds,
        then of all."""
        return self._room.victims(num_bytes, tenant, is_prefetch=is_prefetch)

    def start_load(
        self,
        key: AdapterKey,
        num_bytes: int,
        *,
        is_prefetch: bool = False,
        cause: PrefetchCause = "queue",
    ) -> tuple[AdapterKey, ...]:
        """Reserve memory for an absent adapter; return those that are evicted for it, in order.
        They may be on their way, if they were prefetched. `cause` is a prefetch's.

        Raises:
            ResidencyViolation: the adapter is not absent, or `can_load` is false.
        """
        if key in self._device:
            raise ResidencyViolation(f"adapter {key.digest} is {self.state(key).name.lower()}")
        if num_bytes < 0 or not self.can_load(num_bytes, key.tenant, is_prefetch=is_prefetch):
            raise ResidencyViolation(
                f"{num_bytes} bytes cannot be made free of {self.capacity_bytes}"
            )
        evicted = self.victims(num_bytes, key.tenant, is_prefetch=is_prefetch)
        for victim in evicted:
            self._remove(victim, "prefetch" if is_prefetch else "load")
            self._eviction.evicted(victim)
        is_pinned = key in self._promises.pinned
        self._device.add(key, Entry(num_bytes, is_unclaimed=is_prefetch, is_pinned=is_pinned))
        self._version += 1
        if is_prefetch:
            self.prefetched.start(key, num_bytes, cause)
        self._eviction.loaded(key, num_bytes)
        self.counts.count_load(is_from_host=self.host.begin(key, self.demand))
        return evicted

    def claim(self, key: AdapterKey) -> None:
        """A request needs what is being prefetched: from now on it is a load like any other."""
        entry = self._expect(key, State.LOADING)
        if not entry.is_unclaimed:
            raise ResidencyViolation(f"adapter {key.digest} was not prefetched")
        self._device.claim(key)
        self._version += 1
        self.prefetched.claim(key)

    def note_layers(
        self, key: AdapterKey, num_layers: int, of_layers: int, *, is_open: bool = False
    ) -> None:
        """So many of its layers are on the device; never fewer than before, nor more than all.
        `is_open` if it may be used in part, which it may from then on."""
        entry = self._expect(key, State.LOADING)
        if not entry.num_layers <= num_layers <= of_layers:
            raise ResidencyViolation(
                f"adapter {key.digest} has {entry.num_layers} layers; then it cannot have "
                f"{num_layers} of {of_layers}"
            )
        entry.num_layers, entry.of_layers = num_layers, of_layers
        if is_open and not entry.is_open:
            entry.is_open = True
            self._version += 1

    def finish_load(self, key: AdapterKey) -> None:
        """The adapter arrived and may be leased."""
        self._expect(key, State.LOADING)
        self._device.arrive(key)
        self._version += 1
        self._device.touch(key)
        self.host.end(key, has_come=True)
        self._settle(key)

    def fail_load(self, key: AdapterKey) -> None:
        """The adapter did not arrive: its memory is free again, leases on it are gone, and another
        load may be tried."""
        self._expect(key, State.LOADING)
        self._remove(key, None)
        self._settle(key)

    def hold(self, key: AdapterKey) -> None:
        """Take a lease on what is loading and not unclaimed: once it is there, it stays. It is no
        use of it, other than `acquire`."""
        entry = self._expect(key, State.LOADING)
        if entry.is_unclaimed:
            raise ResidencyViolation(f"adapter {key.digest} is prefetched and not claimed")
        self._device.lease(key, 1)

    def acquire(self, key: AdapterKey) -> None:
        """Take a lease on an adapter that is resident, which claims it, or on its way, claimed and
        open; it keeps it from being evicted."""
        entry = self._entries.get(key)
        if entry is None or not entry.is_usable:
            entry = self._expect(key, State.RESIDENT)
        self._device.lease(key, 1)
        if entry.is_unclaimed:
            self._device.claim(key)
            self.prefetched.claim(key)
        self._eviction.used(key)
        self.counts.num_uses += 1
        self._touch(key)
        self.host.use(key)

    def release(self, key: AdapterKey) -> None:
        """Give a lease back; this counts as a use."""
        entry = self._device.get(key)
        if entry is None or entry.leases == 0:
            state = self.state(key).name.lower()
            raise ResidencyViolation(f"adapter {key.digest}, {state}, has no lease to release")
        self._device.lease(key, -1)
        self._touch(key)
        self._settle(key)

    def waits_no_more(self, key: AdapterKey) -> None:
        """A request that waited for the adapter runs or has ended; see `Demand`."""
        self.demand.waits_no_more(key)
        self._settle(key)

    @property
    def floor_bytes(self) -> int:
        """What `capacity_bytes` never falls below; promises are made of it."""
        return self._promises.capacity_bytes

    def spare_bytes(self) -> int:
        """Bytes that nobody uses, nobody waits for, and nothing is promised of."""
        return self._room.spare_bytes()

    def missing_bytes(self, num_bytes: int, tenant: str) -> int | None:
        """Bytes by which `capacity_bytes` is too small for a load of the tenant; None if more of
        it would not help, since its cap is in the way."""
        return self._room.missing_bytes(num_bytes, tenant)

    def resize(self, capacity_bytes: int) -> tuple[AdapterKey, ...]:
        """Have so many bytes from now on. Return what is evicted for that: of `spare_bytes`.

        Raises:
            ResidencyViolation: they do not suffice, or it would fall below its floor.
        """
        missing = self.held_bytes - capacity_bytes
        if capacity_bytes < self.floor_bytes or missing > self.spare_bytes() - self.free_bytes:
            raise ResidencyViolation(f"{capacity_bytes} bytes are too few for adapters")
        evicted = self._room.idle_victims(missing)
        for key in evicted:
            self._remove(key, "kv")
            self._eviction.evicted(key)
        self._device.capacity_bytes = capacity_bytes
        return tuple(evicted)

    def reserve(self, asked: Reservations) -> bool:
        """Let these pins, floors and caps hold, as far as `grant` says, unless they are older than
        those that do; False then. A cap that is exceeded already holds from the next load on."""
        if not self._promises.renew(asked):
            return False
        for key, entry in self._device.items():
            if entry.is_pinned is not (key in self._promises.pinned):
                self._device.pin(key, is_pinned=not entry.is_pinned)
        self._device.set_floors(self._promises.floors)
        self.host.reserve(asked)
        return True

    def absent_pins(self) -> Iterator[tuple[AdapterKey, int]]:
        """Pinned adapters that are neither there nor on their way, and their bytes."""
        return ((key, num) for key, num in self._promises.pinned.items() if key not in self._device)

    def drop(self, key: AdapterKey) -> None:
        """Nobody new will ask for it: free all memory of it, in each tier, once nobody uses it or
        waits for it, and pin it no longer."""
        self.counts.num_drops += 1
        self._promises.unpin(key)
        self.demand.end_hint(key)
        if key in self._device:
            self._device.pin(key, is_pinned=False)
        self._dropped.add(key)
        self._settle(key)

    def take_freed(self) -> tuple[AdapterKey, ...]:
        """What was dropped and is freed on the device since the last call."""
        freed, self._freed = tuple(self._freed), []
        return freed

    def status(self, only: AdapterKey | None = None) -> Iterator[AdapterStatus]:
        """How each adapter stands that is anywhere, or is waited for; or this one, if it is not."""
        if only is not None:
            return iter((status_of(only, self._device, self.host, self.demand),))
        keys = {key: None for key, _ in self._device.items()}
        keys |= dict.fromkeys(self.host.keys) | dict.fromkeys(self.demand.awaited())
        return (status_of(key, self._device, self.host, self.demand) for key in keys)

    def check(self) -> None:
        """Assert the conservation laws; holds between any two calls."""
        self._device.check()
        self.host.check({key for key, entry in self._device.items() if not entry.is_there})
        for key, entry in self._device.items():
            assert not entry.leases or entry.is_there or not entry.is_unclaimed
            assert entry.is_pinned is (key in self._promises.pinned)
        num_unclaimed = sum(entry.is_unclaimed for _, entry in self._device.items())
        self.prefetched.check(num_unclaimed)
        for key in self._dropped:
            is_used = key in self._device or key in self.host.keys
            assert is_used or self.demand.is_awaited(key), "what is gone is to be dropped"

    def _remove(self, key: AdapterKey, cause: Cause | None) -> None:
        """Free its memory on the device, and give up its read if it is on its way."""
        entry = self._device.remove(key)
        self._version += 1
        if entry.is_unclaimed:
            self.prefetched.waste(key, entry.num_bytes)
        if cause is not None:
            self.counts.count_eviction("device", cause)
            self.last_evictions.note(key, "device", cause)
        if not entry.is_there:
            self.host.end(key, has_come=False)

    def _settle(self, key: AdapterKey) -> None:
        """Free what was dropped, if nobody uses it or waits for it any more."""
        if key not in self._dropped or self.demand.is_awaited(key):
            return
        entry = self._device.get(key)
        if entry is not None:
            if not entry.is_evictable:
                return
            self._remove(key, "drop")
            self._freed.append(key)
            self._eviction.evicted(key)
        if self.host.drop(key):
            self._dropped.remove(key)
            self.demand.forget(key)

    def _touch(self, key: AdapterKey) -> None:
        self._device.use(key, self._clock())

    def _expect(self, key: AdapterKey, state: State) -> Entry:
        entry = self._device.get(key)
        if entry is None or self.state(key) is not state:
            raise ResidencyViolation(
                f"adapter {key.digest} is {self.state(key).name.lower()}, not {state.name.lower()}"
            )
        return entry
