import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from loraplex.adapters.errors import ResidencyViolation
from loraplex.adapters.residency import Residency, State
from loraplex.adapters.spec import AdapterKey

A, B, C = (AdapterKey("tenant", digest) for digest in "abc")


def make(capacity=10, **resident):
    """A residency that holds these adapters, the least recently used first."""
    residency = Residency(capacity)
    for digest, num_bytes in resident.items():
        key = AdapterKey("tenant", digest)
        residency.start_load(key, num_bytes)
        residency.finish_load(key)
    return residency


def test_an_adapter_is_absent_then_loading_then_resident():
    residency = Residency(10)
    assert residency.state(A) is State.ABSENT
    residency.start_load(A, 4)
    assert residency.state(A) is State.LOADING
    residency.finish_load(A)
    assert residency.state(A) is State.RESIDENT


def test_bytes_are_held_from_the_start_of_a_load():
    residency = Residency(10)
    residency.start_load(A, 4)
    assert (residency.held_bytes, residency.free_bytes) == (4, 6)


def test_the_same_digest_of_another_tenant_is_another_adapter():
    assert make(a=4).state(AdapterKey("other", "a")) is State.ABSENT


def test_one_key_never_loads_twice_at_a_time():
    residency = Residency(10)
    residency.start_load(A, 4)
    with pytest.raises(ResidencyViolation, match="loading"):
        residency.start_load(A, 4)


def test_a_failed_load_gives_its_bytes_back_and_may_be_tried_again():
    residency = Residency(10)
    residency.start_load(A, 10)
    residency.fail_load(A)
    assert residency.state(A) is State.ABSENT
    assert residency.start_load(A, 10) == ()


def test_of_what_nobody_asks_for_the_least_recently_used_is_evicted_first():
    residency = make(a=4, b=4)
    assert residency.start_load(C, 4) == (A,)
    assert residency.state(A) is State.ABSENT


@pytest.mark.parametrize("released", [False, True])
def test_a_lease_is_a_use_when_it_is_taken_and_when_it_is_given_back(released):
    residency = make(a=4, b=4)
    residency.acquire(A)
    if released:
        residency.acquire(B)
        residency.release(B)
        residency.release(A)
    assert residency.start_load(C, 4) == (B,)


def test_what_was_asked_for_least_is_evicted_first():
    residency = make(a=4, b=4)
    for key in (A, A, B):
        residency.demand.arrived(key, 4)
    assert residency.start_load(C, 4) == (B,)


def test_what_a_waiting_request_needs_goes_after_all_that_none_needs():
    residency = make(a=4, b=4)
    for key in (A, *[B] * 9):
        residency.demand.arrived(key, 4)
    residency.demand.waits(A, 4)
    assert residency.start_load(C, 4) == (B,)


def test_of_what_is_waited_for_that_goes_first_which_fewest_wait_for():
    residency = make(a=4, b=4)
    for key in (A, B, B):
        residency.demand.arrived(key, 4)
        residency.demand.waits(key, 4)
    assert residency.start_load(C, 4) == (A,)


def test_a_small_adapter_goes_after_a_large_one_since_any_load_costs_something():
    residency = make(capacity=12, a=8, b=2)
    for key, size in ((A, 8), (B, 2)):
        residency.demand.arrived(key, size)
    assert residency.start_load(C, 4) == (A,)


def test_a_prefetch_is_evicted_on_its_way_but_not_once_it_is_claimed():
    residency = Residency(10)
    residency.start_load(A, 6, is_prefetch=True)
    assert residency.is_unclaimed(A)
    residency.start_load(B, 4, is_prefetch=True)
    residency.claim(B)
    assert residency.start_load(C, 6) == (A,)
    assert residency.state(B) is State.LOADING
    assert (residency.prefetched.num_claimed, residency.prefetched.num_wasted) == (1, 1)
    assert residency.prefetched.wasted_bytes == 6


def test_a_lease_claims_what_was_prefetched():
    residency = Residency(10)
    residency.start_load(A, 6, is_prefetch=True)
    residency.finish_load(A)
    assert residency.is_unclaimed(A)
    residency.acquire(A)
    assert not residency.is_unclaimed(A)
    assert residency.prefetched.num_claimed == 1


def test_only_a_prefetch_on_its_way_is_claimed():
    residency = make(a=1)
    residency.start_load(B, 1)
    with pytest.raises(ResidencyViolation, match="resident"):
        residency.claim(A)
    with pytest.raises(ResidencyViolation, match="not prefetched"):
        residency.claim(B)


def test_no_more_are_evicted_than_needed():
    residency = make(a=3, b=3, c=3)
    assert residency.start_load(AdapterKey("tenant", "d"), 4) == (A,)


def test_a_leased_adapter_is_never_evicted():
    residency = make(a=4, b=4)
    residency.acquire(A)
    assert residency.can_load(6)
    assert not residency.can_load(7)
    assert residency.start_load(C, 6) == (B,)


def test_a_loading_adapter_is_not_evicted():
    residency = Residency(10)
    residency.start_load(A, 6)
    assert not residency.can_load(5)


def test_a_load_that_does_not_fit_evicts_nothing():
    residency = make(a=4, b=4)
    with pytest.raises(ResidencyViolation, match="11 bytes"):
        residency.start_load(C, 11)
    assert residency.state(A) is residency.state(B) is State.RESIDENT


def test_only_the_last_lease_makes_an_adapter_evictable():
    residency = make(a=10)
    residency.acquire(A)
    residency.acquire(A)
    residency.release(A)
    assert residency.num_leases == 1
    assert not residency.can_load(1)
    residency.release(A)
    assert residency.can_load(10)


@pytest.mark.parametrize("call", ["finish_load", "fail_load", "hold", "acquire", "release"])
def test_a_transition_from_absent_is_refused(call):
    with pytest.raises(ResidencyViolation, match="absent"):
        getattr(Residency(10), call)(A)


@pytest.mark.parametrize("call", ["finish_load", "fail_load", "hold"])
def test_a_load_ends_only_once(call):
    with pytest.raises(ResidencyViolation, match="resident"):
        getattr(make(a=1), call)(A)


@pytest.mark.parametrize("call", ["acquire", "release"])
def test_a_loading_adapter_is_not_used(call):
    residency = Residency(10)
    residency.start_load(A, 1)
    with pytest.raises(ResidencyViolation, match="loading"):
        getattr(residency, call)(A)


def test_what_is_held_while_it_loads_stays_when_it_is_there():
    residency = Residency(10)
    residency.start_load(A, 10)
    residency.hold(A)
    residency.finish_load(A)
    assert not residency.can_load(1)
    residency.release(A)
    assert residency.can_load(10)


def test_a_load_that_fails_takes_its_leases_along():
    residency = Residency(10)
    residency.start_load(A, 10)
    residency.hold(A)
    residency.fail_load(A)
    assert residency.num_leases == 0
    assert residency.start_load(A, 10) == ()


def test_what_is_prefetched_is_held_only_once_it_is_claimed():
    residency = Residency(10)
    residency.start_load(A, 1, is_prefetch=True)
    with pytest.raises(ResidencyViolation, match="not claimed"):
        residency.hold(A)
    residency.claim(A)
    residency.hold(A)
    assert residency.num_leases == 1


def test_a_lease_cannot_be_given_back_twice():
    residency = make(a=1)
    residency.acquire(A)
    residency.release(A)
    with pytest.raises(ResidencyViolation, match="no lease"):
        residency.release(A)


class ResidencyMachine(RuleBasedStateMachine):
    """Drives a residency and a plain model of it side by side."""

    def __init__(self):
        super().__init__()
        self.residency = Residency(20)
        self.loading: dict[AdapterKey, int] = {}
        self.unclaimed: set[AdapterKey] = set()
        self.resident: dict[AdapterKey, int] = {}  # from the least recently used
        self.leases: list[AdapterKey] = []

    def used(self, key):
        self.resident[key] = self.resident.pop(key)

    @rule(
        tenant=st.sampled_from("xy"),
        digest=st.sampled_from("abcde"),
        size=st.integers(0, 25),
        is_prefetch=st.booleans(),
    )
    def load(self, tenant, digest, size, is_prefetch):
        key = AdapterKey(tenant, digest)
        if key in self.loading or key in self.resident:
            return
        pinned = sum(s for k, s in self.loading.items() if k not in self.unclaimed)
        pinned += sum(self.resident.get(k, 0) for k in set(self.leases))
        assert self.residency.can_load(size) is (size <= 20 - pinned)
        if not self.residency.can_load(size):
            return
        loadable = self.residency.loadable_bytes()
        evicted = self.residency.start_load(key, size, is_prefetch=is_prefetch)
        if is_prefetch:
            assert self.residency.loadable_bytes() == loadable, "a prefetch took memory from loads"
            self.unclaimed.add(key)
        for victim in evicted:
            assert victim not in self.leases
            assert victim in self.resident or victim in self.unclaimed
            self.resident.pop(victim, None)
            self.loading.pop(victim, None)
            self.unclaimed.discard(victim)
        self.loading[key] = size

    @precondition(lambda self: self.unclaimed & self.loading.keys())
    @rule(data=st.data())
    def claim(self, data):
        key = data.draw(st.sampled_from(sorted(self.unclaimed & self.loading.keys())))
        self.residency.claim(key)
        self.unclaimed.remove(key)

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), succeeds=st.booleans())
    def end_load(self, data, succeeds):
        key = data.draw(st.sampled_from(sorted(self.loading)))
        size = self.loading.pop(key)
        if succeeds:
            self.residency.finish_load(key)
            self.resident[key] = size
        else:
            self.residency.fail_load(key)
            self.unclaimed.discard(key)
            self.leases = [lease for lease in self.leases if lease != key]

    @precondition(lambda self: self.loading.keys() - self.unclaimed)
    @rule(data=st.data())
    def hold(self, data):
        key = data.draw(st.sampled_from(sorted(self.loading.keys() - self.unclaimed)))
        self.residency.hold(key)
        self.leases.append(key)

    @precondition(lambda self: self.resident)
    @rule(data=st.data())
    def acquire(self, data):
        key = data.draw(st.sampled_from(sorted(self.resident)))
        self.residency.acquire(key)
        self.unclaimed.discard(key)
        self.leases.append(key)
        self.used(key)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data):
        key = data.draw(st.sampled_from(sorted(self.leases)))
        self.residency.release(key)
        self.leases.remove(key)
        if key in self.resident:
            self.used(key)

    @invariant()
    def bytes_and_leases_are_conserved(self):
        self.residency.check()
        held = sum(self.loading.values()) + sum(self.resident.values())
        assert self.residency.held_bytes == held
        assert self.residency.free_bytes + held == self.residency.capacity_bytes
        assert self.residency.num_leases == len(self.leases)
        counts = self.residency.prefetched
        outstanding = counts.num_started - counts.num_claimed - counts.num_wasted
        assert outstanding == len(self.unclaimed)

    @invariant()
    def states_agree(self):
        for key in (AdapterKey(tenant, digest) for tenant in "xy" for digest in "abcde"):
            expected = State.RESIDENT if key in self.resident else State.ABSENT
            expected = State.LOADING if key in self.loading else expected
            assert self.residency.state(key) is expected


TestResidencyMachine = ResidencyMachine.TestCase
TestResidencyMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
