"""Pins, floors and caps: what they hold, and that they block nobody."""

import pytest

from loraplex.adapters.errors import ResidencyViolation
from loraplex.adapters.reservations import Reservations, grant
from loraplex.adapters.residency import Residency, State
from loraplex.adapters.spec import AdapterKey

A, B, C, D = (AdapterKey("t", digest) for digest in "abcd")
OTHERS = AdapterKey("u", "x")


def resident(residency: Residency, **sizes: int) -> Residency:
    """These adapters of tenant t, the least recently used first."""
    for digest, num_bytes in sizes.items():
        key = AdapterKey("t", digest)
        residency.start_load(key, num_bytes)
        residency.finish_load(key)
    return residency


def promised(capacity: int = 12, **changes: object) -> Residency:
    residency = Residency(capacity)
    assert residency.reserve(Reservations(1, **changes))
    return residency


def test_what_is_pinned_is_never_evicted_and_counts_once_it_is_there() -> None:
    residency = resident(promised(pinned={A: 4}), a=4, b=4)
    assert residency.can_load(8, "u")
    assert not residency.can_load(9, "u")
    assert residency.start_load(OTHERS, 8) == (B,)
    assert residency.state(A) is State.RESIDENT


def test_a_pin_is_no_pin_any_more_once_a_newer_snapshot_lacks_it() -> None:
    residency = resident(promised(pinned={A: 4}), a=4)
    assert not residency.reserve(Reservations(1)), "as old as what holds"
    assert residency.reserve(Reservations(2))
    assert residency.can_load(12, "u")


def test_what_is_pinned_and_absent_is_named_until_it_is_on_its_way() -> None:
    residency = promised(pinned={A: 4, B: 2})
    assert list(residency.absent_pins()) == [(A, 4), (B, 2)]
    residency.start_load(A, 4, is_prefetch=True)
    assert list(residency.absent_pins()) == [(B, 2)]


def test_a_floor_keeps_what_was_used_last_from_others_but_not_from_its_own_tenant() -> None:
    residency = resident(promised(floors={"t": 6}), a=4, b=4, c=2)
    assert residency.loadable_bytes("u") == 2 + 4, "b and c fit into the floor"
    assert residency.loadable_bytes("t") == 12
    with pytest.raises(ResidencyViolation, match="7 bytes"):
        residency.start_load(OTHERS, 7)
    assert residency.start_load(OTHERS, 6) == (A,)
    assert residency.start_load(D, 6) == (B, C)


def test_a_floor_protects_whole_adapters_only() -> None:
    residency = resident(promised(floors={"t": 5}), a=2, b=4, c=4)
    assert residency.loadable_bytes("u") == 12 - 4, "c fits, b would not, a would not"


def test_what_was_prefetched_is_protected_by_no_floor() -> None:
    residency = promised(floors={"t": 6})
    residency.start_load(A, 4, is_prefetch=True)
    assert residency.loadable_bytes("u") == 12
    residency.claim(A)
    residency.finish_load(A)
    assert residency.loadable_bytes("u") == 8


def test_a_prefetch_pushes_out_nothing_that_a_floor_protects_not_even_its_own_tenants() -> None:
    residency = resident(promised(floors={"t": 6}), a=6)
    assert not residency.can_load(7, "t", is_prefetch=True)
    assert residency.can_load(7, "t")


def test_a_tenant_at_its_cap_pushes_out_its_own_though_there_is_room() -> None:
    residency = resident(promised(caps={"t": 6}), a=3, b=3)
    assert residency.start_load(C, 4) == (A, B)
    assert residency.held_bytes == 4


def test_a_cap_counts_what_is_leased() -> None:
    residency = resident(promised(caps={"t": 6}), a=3)
    residency.acquire(A)
    assert residency.loadable_bytes("t") == 3
    assert residency.loadable_bytes("u") == 9


def test_pins_and_floors_together_take_at_most_half_of_the_memory() -> None:
    asked = Reservations(1, {A: 3, B: 4, C: 1}, {"t": 5, "u": 2, "v": 1})
    granted = grant(asked, 12)
    assert granted.reservations.pinned == {A: 3, C: 1}
    assert granted.refused_pins == (B,)
    assert granted.reservations.floors == {"t": 5, "v": 1}, "pins are among their tenant's floor"
    assert granted.refused_floors == ("u",)
    assert granted.num_refused == 2


def test_pins_of_a_tenant_stay_within_its_cap() -> None:
    granted = grant(Reservations(1, {A: 2, B: 2}, {}, {"t": 3}), 12)
    assert granted.refused_pins == (B,)


def test_what_can_never_be_loaded_beside_promises_to_others_is_known() -> None:
    residency = promised(pinned={OTHERS: 2}, floors={"u": 4}, caps={"v": 5})
    assert residency.most_loadable_bytes(A) == 8
    assert residency.most_loadable_bytes(OTHERS) == 12
    assert residency.most_loadable_bytes(AdapterKey("u", "y")) == 10
    assert residency.most_loadable_bytes(AdapterKey("v", "z")) == 5
    residency.demand.waits(A, 9)
    residency.demand.waits(B, 8)
    assert residency.unloadable() == [A]


def test_what_is_dropped_is_pinned_no_more_and_goes_with_its_last_lease() -> None:
    residency = resident(promised(pinned={A: 4}), a=4)
    residency.acquire(A)
    residency.drop(A)
    assert residency.take_freed() == ()
    residency.release(A)
    assert residency.take_freed() == (A,)
    assert residency.held_bytes == 0
    assert list(residency.absent_pins()) == []


def test_only_uses_count_as_uses_for_those_who_look() -> None:
    residency = Residency(4, clock=iter([5.0, 7.0]).__next__)
    resident(residency, a=4)
    (status,) = residency.status()
    assert (status.tier, status.used_s) == ("device", None)
    residency.acquire(A)
    (status,) = residency.status()
    assert (status.used_s, status.leases) == (5.0, 1)


def test_what_is_dropped_while_it_is_awaited_stays_until_nobody_waits() -> None:
    residency = resident(Residency(12), a=4)
    residency.demand.waits(A, 4)
    residency.drop(A)
    assert residency.state(A) is State.RESIDENT
    residency.waits_no_more(A)
    assert residency.take_freed() == (A,)
