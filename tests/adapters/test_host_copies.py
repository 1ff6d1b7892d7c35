"""The tier between store and device: what it keeps, and that it stands in nobody's way."""

from loraplex.adapters.host_copies import HostMemory, HostOrders
from loraplex.adapters.reservations import Reservations
from loraplex.adapters.residency import Residency, State
from loraplex.adapters.spec import AdapterKey

A, B, C = (AdapterKey("t", digest) for digest in "abc")


def make(device: int = 4, host: int = 8, num_bytes: int | None = 4) -> Residency:
    return Residency(device, host=HostMemory(host, lambda _: num_bytes))


def load(residency: Residency, key: AdapterKey) -> HostOrders:
    """Load it, 4 bytes, and return what the host is told."""
    residency.start_load(key, 4)
    orders = residency.host.take_orders()
    residency.finish_load(key)
    residency.check()
    return orders


def test_what_is_read_is_kept_and_comes_from_there_the_next_time() -> None:
    residency = make()
    assert load(residency, A) == HostOrders(keeps=(A,))
    assert load(residency, B) == HostOrders(keeps=(B,)), "b pushed a off the device"
    assert residency.state(A) is State.ABSENT
    assert load(residency, A) == HostOrders()
    assert (residency.counts.num_loads, residency.counts.num_host_loads) == (3, 1)


def test_what_is_asked_for_least_is_given_up_for_what_is_read() -> None:
    residency = make()
    residency.demand.arrived(A, 4)
    for key in (A, B):
        load(residency, key)
    assert load(residency, C) == HostOrders(evictions=(B,), keeps=(C,))
    assert residency.host.evictions == {"load": 1}


def test_a_copy_that_is_on_its_way_to_the_device_is_not_given_up() -> None:
    residency = make(device=8, host=4)
    load(residency, A)
    residency.start_load(B, 4)
    assert residency.host.take_orders() == HostOrders(evictions=(A,), keeps=(B,))
    residency.fail_load(B)
    assert B not in residency.host.keys
    residency.start_load(B, 4)
    residency.start_load(C, 4)
    assert C not in residency.host.keys, "b is being read; c is used and not kept"
    residency.check()


def test_what_cannot_be_measured_or_is_too_large_is_loaded_all_the_same() -> None:
    for residency in (make(num_bytes=None), make(num_bytes=9), Residency(4)):
        assert load(residency, A) == HostOrders()
        assert residency.state(A) is State.RESIDENT
        assert residency.host.held_bytes == 0


def test_a_load_that_fails_leaves_no_copy_but_one_that_was_there() -> None:
    residency = make()
    residency.start_load(A, 4)
    residency.fail_load(A)
    assert residency.host.held_bytes == 0
    load(residency, A)
    load(residency, B)
    residency.start_load(A, 4)
    residency.fail_load(A)
    assert A in residency.host.keys
    residency.check()


def test_a_prefetch_that_is_given_up_is_not_kept_either() -> None:
    residency = make()
    residency.start_load(A, 4, is_prefetch=True)
    assert residency.start_load(B, 4) == (A,)
    assert residency.host.take_orders() == HostOrders(keeps=(B,))


def test_what_is_dropped_leaves_the_host_too() -> None:
    residency = make()
    load(residency, A)
    load(residency, B)
    residency.drop(A)
    assert residency.host.take_orders() == HostOrders(evictions=(A,))
    residency.drop(B)
    assert residency.take_freed() == (B,)
    assert residency.held_bytes == residency.host.held_bytes == 0


def test_what_the_host_has_goes_off_the_device_before_what_only_the_store_has() -> None:
    residency = Residency(8, host=HostMemory(4, lambda _: 4))
    for key in (A, B):
        residency.demand.arrived(key, 4)
        load(residency, key)
    assert B in residency.host.keys
    assert residency.start_load(C, 4) == (B,), "a would have to be read from the store again"


U = AdapterKey("u", "d")


def test_what_a_floor_protects_leaves_for_its_own_tenants_reads_alone() -> None:
    residency = make(device=16, host=8)
    assert residency.reserve(Reservations(1, host_floors={"t": 4}))
    for key in (A, B):
        load(residency, key)
    assert load(residency, U) == HostOrders(evictions=(A,), keeps=(U,)), "b was used last"
    status = {each.key: each for each in residency.status()}
    residency.start_load(AdapterKey("u", "e"), 4)
    assert residency.host.take_orders() == HostOrders(evictions=(U,), keeps=(AdapterKey("u", "e"),))
    assert status.keys() == {A, B, U}
    assert load(residency, C) == HostOrders(evictions=(B,), keeps=(C,))


def test_a_tenant_at_its_cap_gives_up_its_own_and_keeps_nothing_larger() -> None:
    residency = make(device=16, host=12)
    residency.reserve(Reservations(1, host_caps={"t": 4}))
    load(residency, U)
    load(residency, A)
    assert load(residency, B) == HostOrders(evictions=(A,), keeps=(B,))
    residency.reserve(Reservations(2, host_caps={"t": 3}))
    assert load(residency, C) == HostOrders(), "it is read, used and not kept"
    assert not residency.reserve(Reservations(1)), "an older snapshot won"


def test_floors_of_the_host_take_half_of_it_at_most() -> None:
    residency = make(host=8)
    residency.reserve(Reservations(1, host_floors={"t": 4, "u": 1}))
    assert residency.host.granted.refused_floors == ("u",)
    residency.drop(A)
    assert residency.granted.refused_floors == ()
