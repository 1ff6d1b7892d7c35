"""The conservation laws of adapters in memory, under random interleavings of what may happen."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loraplex.adapters.demand import Demand
from loraplex.adapters.eviction import LeastRecentlyUsed
from loraplex.adapters.reservations import RESERVABLE_SHARE, Reservations
from loraplex.adapters.residency import HostMemory, Residency, State
from loraplex.adapters.spec import AdapterKey

CAPACITY, HOST_CAPACITY = 12, 12
SIZES = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 7}
KEYS = [AdapterKey(tenant, digest) for tenant in "xyz" for digest in SIZES]
TENANTS = "xyz"


def of_two_tiers(num_bytes: st.SearchStrategy[int]) -> st.SearchStrategy[list[dict[str, int]]]:
    """By tenant, for the device and for the host."""
    each = st.dictionaries(st.sampled_from(TENANTS), num_bytes)
    return st.lists(each, min_size=2, max_size=2)


FLOORS, CAPS = of_two_tiers(st.integers(1, 6)), of_two_tiers(st.integers(2, 12))


class MostRecentFirst(LeastRecentlyUsed):
    """Pushes out first what floors protect, unless it is kept from it."""

    def order(self, candidates: Sequence[AdapterKey], demand: Demand) -> Sequence[AdapterKey]:
        return candidates[::-1]


class Machine(RuleBasedStateMachine):
    """Drives a residency as the engine does, and keeps books of its own beside it."""

    def __init__(self) -> None:
        super().__init__()
        host = HostMemory(HOST_CAPACITY, lambda digest: 2 * SIZES[digest])
        self.residency = Residency(CAPACITY, MostRecentFirst(), host)
        self.claimed: dict[AdapterKey, bool] = {}
        """All that is on its way or there: whether a request has needed it."""
        self.loading: set[AdapterKey] = set()
        self.open: set[AdapterKey] = set()
        """Of those, what may be used in part."""
        self.leases: Counter[AdapterKey] = Counter()
        self.waiting: Counter[AdapterKey] = Counter()
        self.on_host: set[AdapterKey] = set()
        """What whoever copies has kept, by its orders."""
        self.keeps: set[AdapterKey] = set()
        self.dropped: set[AdapterKey] = set()
        self.version = 0

    def protected_from(self, loader: str | None) -> dict[AdapterKey, int]:
        """What floors keep from a load of this tenant, found anew from the order of use."""
        floors = self.residency.granted.reservations.floors
        order = [key for key, _ in self.residency._device.items()]
        protected = {}
        for tenant in floors.keys() - {loader}:
            mine = [key for key in reversed(order) if key.tenant == tenant]
            left = floors[tenant] - sum(SIZES[k.digest] for k in mine if self.is_pinned(k))
            for key in mine:
                size = SIZES[key.digest]
                if self.claimed[key] and not self.is_pinned(key) and size <= left:
                    left -= size
                    protected[key] = size
        return protected

    def host_protected_from(self, loader: str) -> set[AdapterKey]:
        """The same of the host: what another tenant's read must leave there."""
        host = self.residency.host
        floors = host.granted.reservations.floors
        protected = set()
        for tenant in floors.keys() - {loader}:
            left = floors[tenant]
            for key in reversed([key for key in host.keys if key.tenant == tenant]):
                size = 2 * SIZES[key.digest]
                if size <= left:
                    left -= size
                    protected.add(key)
        return protected

    def is_pinned(self, key: AdapterKey) -> bool:
        return key in self.residency._promises.pinned

    def may_go(self, key: AdapterKey) -> bool:
        is_used = self.leases[key] or self.is_pinned(key)
        return not is_used and (key not in self.loading or not self.claimed[key])

    def expected_room(self, tenant: str) -> int:
        protected = self.protected_from(tenant)
        held = {key: SIZES[key.digest] for key in self.claimed}
        evictable = {k: n for k, n in held.items() if self.may_go(k) and k not in protected}
        room = CAPACITY - sum(held.values()) + sum(evictable.values())
        cap = self.residency.granted.reservations.caps.get(tenant)
        if cap is None:
            return room
        kept = sum(n for k, n in held.items() if k.tenant == tenant and k not in evictable)
        return min(room, cap - kept)

    def obey_host(self, key: AdapterKey, before: set[AdapterKey], kept: set[AdapterKey]) -> None:
        """A load of this adapter has begun: the host gave up nothing that a floor protects, and
        keeps no more of a tenant than its cap."""
        host = self.residency.host
        gone = before - {*host.keys}
        assert not gone & kept, "what a floor of the host protects was given up"
        cap = host.granted.reservations.caps.get(key.tenant)
        if cap is not None and key in host.keys and key not in before:
            held = sum(2 * SIZES[k.digest] for k in host.keys if k.tenant == key.tenant)
            assert held <= cap, "a read has exceeded a cap of the host"

    def obey(self) -> None:
        """Do what a plan would be told."""
        for key in self.residency.take_freed():
            assert key in self.dropped
            del self.claimed[key]
            self.loading.discard(key)
            self.keeps.discard(key)
        orders = self.residency.host.take_orders()
        self.on_host -= {*orders.evictions}
        for key in orders.keeps:
            assert key in self.loading, "what nobody loads is to be kept"
            self.keeps.add(key)

    @initialize(floor=st.integers(1, 6), cap=st.integers(4, 12))
    def promise(self, floor: int, cap: int) -> None:
        """So that each run has some."""
        self.reserve([], [{"x": floor}, {"y": floor}], [{"y": cap}, {"z": cap}], 0)

    @rule(
        loads=st.lists(
            st.tuples(st.sampled_from(KEYS), st.booleans(), st.booleans()), min_size=2, max_size=8
        )
    )
    def load_some(self, loads: list[tuple[AdapterKey, bool, bool]]) -> None:
        for key, is_prefetch, ends in loads:
            if key not in self.claimed:
                self.load(key, is_prefetch=is_prefetch, ends=ends)

    def load(self, key: AdapterKey, *, is_prefetch: bool, ends: bool) -> None:
        rooms = {tenant: self.residency.loadable_bytes(tenant) for tenant in TENANTS}
        assert rooms == {tenant: self.expected_room(tenant) for tenant in TENANTS}
        size = SIZES[key.digest]
        if not self.residency.can_load(size, key.tenant, is_prefetch=is_prefetch):
            assert is_prefetch or size > rooms[key.tenant]
            return
        protected = self.protected_from(None if is_prefetch else key.tenant)
        may_go = {k for k in self.claimed if self.may_go(k) and k not in protected}
        on_host, kept = {*self.on_host}, self.host_protected_from(key.tenant)
        for victim in self.residency.start_load(key, size, is_prefetch=is_prefetch):
            assert victim in may_go, "what is leased, pinned or protected was pushed out"
            del self.claimed[victim]
            self.loading.discard(victim)
            self.keeps.discard(victim)
        self.claimed[key] = not is_prefetch
        self.loading.add(key)
        self.open.discard(key)
        self.obey_host(key, on_host, kept)
        caps = self.residency.granted.reservations.caps
        if key.tenant in caps:
            held = sum(SIZES[k.digest] for k in self.claimed if k.tenant == key.tenant)
            assert held <= caps[key.tenant], "a load has exceeded a cap"
        if is_prefetch and not self.is_pinned(key):
            after = {tenant: self.residency.loadable_bytes(tenant) for tenant in TENANTS}
            assert all(after[t] >= rooms[t] for t in TENANTS), "a prefetch took from loads"
            others = [t for t in TENANTS if t not in caps]
            assert all(after[t] == rooms[t] for t in others), "a prefetch gave to loads"
        self.obey()
        if ends and key in self.loading:
            self.end(key, has_come=True)

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), succeeds=st.booleans())
    def end_load(self, data: st.DataObject, succeeds: bool) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.loading))), has_come=succeeds)

    def end(self, key: AdapterKey, *, has_come: bool) -> None:
        self.loading.remove(key)
        if has_come:
            self.residency.finish_load(key)
            if key in self.keeps:
                self.on_host.add(key)
        else:
            self.residency.fail_load(key)
            del self.claimed[key], self.leases[key]
        self.keeps.discard(key)
        self.obey()

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), layers=st.integers(0, 4), is_open=st.booleans())
    def layers_come(self, data: st.DataObject, layers: int, is_open: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.loading)))
        before, version = self.residency.get(key).num_layers, self.residency.version
        self.residency.note_layers(key, max(before, layers), 4, is_open=is_open)
        assert before <= self.residency.get(key).num_layers <= 4
        opens = is_open and key not in self.open
        assert (self.residency.version != version) is opens
        if opens:
            self.open.add(key)

    @precondition(lambda self: self.loading)
    @rule(data=st.data())
    def need_what_loads(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.loading)))
        if not self.claimed[key]:
            self.residency.claim(key)
            self.claimed[key] = True
        self.residency.hold(key)
        self.leases[key] += 1

    @property
    def usable(self) -> set[AdapterKey]:
        is_open = {key for key in self.open & self.loading if self.claimed[key]}
        return (self.claimed.keys() - self.loading) | is_open

    @precondition(lambda self: self.usable)
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.usable)))
        self.residency.acquire(key)
        self.claimed[key] = True
        self.leases[key] += 1

    @precondition(lambda self: +self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(+self.leases)))
        self.leases[key] -= 1
        self.residency.release(key)
        self.obey()

    @rule(key=st.sampled_from(KEYS))
    def wait(self, key: AdapterKey) -> None:
        self.residency.demand.arrived(key, SIZES[key.digest])
        self.residency.demand.waits(key, SIZES[key.digest])
        self.waiting[key] += 1

    @precondition(lambda self: +self.waiting)
    @rule(data=st.data())
    def wait_no_more(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(+self.waiting)))
        self.waiting[key] -= 1
        self.residency.waits_no_more(key)
        self.obey()

    @rule(
        pinned=st.lists(st.sampled_from(KEYS), max_size=3, unique=True),
        floors=FLOORS,
        caps=CAPS,
        age=st.integers(0, 2),
    )
    def reserve(
        self,
        pinned: list[AdapterKey],
        floors: list[dict[str, int]],
        caps: list[dict[str, int]],
        age: int,
    ) -> None:
        """Floors and caps of the device, and of the host."""
        version = self.version + 1 - age
        sizes = {key: SIZES[key.digest] for key in pinned}
        asked = Reservations(version, sizes, floors[0], caps[0], floors[1], caps[1])
        assert self.residency.reserve(asked) is (age == 0), "an older snapshot won"
        self.version = max(self.version, version)

    @rule(key=st.sampled_from(KEYS))
    def drop(self, key: AdapterKey) -> None:
        self.dropped.add(key)
        self.residency.drop(key)
        self.obey()
        if not (self.leases[key] or self.waiting[key]):
            is_needed = key in self.loading and self.claimed[key]
            assert is_needed or self.residency.state(key) is State.ABSENT

    @invariant()
    def the_laws_hold(self) -> None:
        self.residency.check()
        held = sum(SIZES[key.digest] for key in self.claimed)
        assert self.residency.held_bytes == held
        assert self.residency.free_bytes + held == CAPACITY
        assert self.residency.num_leases == self.leases.total()
        host = self.residency.host
        assert self.on_host == {key for key in host.keys if host.get(key).is_there}
        assert self.on_host | self.keeps == {*host.keys}
        assert host.held_bytes == sum(2 * SIZES[key.digest] for key in host.keys) <= HOST_CAPACITY

    @invariant()
    def states_agree(self) -> None:
        for key in KEYS:
            expected = State.ABSENT if key not in self.claimed else State.RESIDENT
            expected = State.LOADING if key in self.loading else expected
            assert self.residency.state(key) is expected

    @invariant()
    def pins_and_floors_leave_room_for_others(self) -> None:
        granted = self.residency.granted.reservations
        pinned = sum(granted.pinned.values())
        floors = sum(
            max(0, num - sum(n for k, n in granted.pinned.items() if k.tenant == tenant))
            for tenant, num in granted.floors.items()
        )
        assert pinned + floors <= CAPACITY * RESERVABLE_SHARE
        for key in KEYS:
            if key.tenant not in granted.caps:
                assert self.residency.most_loadable_bytes(key) >= CAPACITY * RESERVABLE_SHARE

    def teardown(self) -> None:
        """When all have ended, whatever is possible can be loaded, and drops leave nothing."""
        for key in list(self.loading):
            self.loading.remove(key)
            self.residency.finish_load(key)
        for key in self.waiting.elements():
            self.residency.waits_no_more(key)
        for key in self.leases.elements():
            self.residency.release(key)
        for key in KEYS:
            if self.residency.state(key) is State.ABSENT:
                most = self.residency.most_loadable_bytes(key)
                assert self.residency.loadable_bytes(key.tenant) >= most
        for key in KEYS:
            self.residency.drop(key)
        assert self.residency.held_bytes == self.residency.host.held_bytes == 0
        assert not self.residency._dropped
        self.residency.check()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
