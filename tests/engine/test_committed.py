"""Requests whose loads were started for them: what they keep until they run, and what they pay."""

from dataclasses import replace

import pytest
from tests.engine.fair_world import SETTINGS, World
from tests.engine.linear_costs import LinearCosts

from loraplex.adapters.residency import State
from loraplex.adapters.spec import AdapterKey

LOAD_MS = 10.0
LONG = {"num_prompt_tokens": 200, "num_output_tokens": 60}
WIDE = {"num_prompt_tokens": 300, "num_output_tokens": 2}


def world(prefetch: str = "none", adapter_bytes: int = 2, **config: object) -> World:
    """Adapters take 2 bytes each. The blocks of a `LONG` and a `WIDE` request do not fit both."""
    values = {
        "num_blocks": 100,
        "max_running": 6,
        "max_model_len": 400,
        "max_step_tokens": 400,
        "max_transfer_bytes": 4,
    }
    settings = replace(SETTINGS, max_open=6, quantum_ms=500.0)
    values |= {"adapter_bytes": adapter_bytes, "prefetch": prefetch} | config
    return World(settings, costs=LinearCosts(load_ms=LOAD_MS / 2), **values)


def loads(w: World) -> list[str]:
    return [key.digest for plan in w.plans for key in (*plan.loads, *plan.prefetches)]


def until_there(w: World, tenant: str, adapter: str) -> None:
    while w.residency.state(AdapterKey(tenant, adapter)) is not State.RESIDENT:
        w.step()


@pytest.mark.parametrize("prefetch", ["none", "queue"])
def test_what_was_loaded_for_a_request_stays_until_there_are_blocks_for_it(prefetch: str) -> None:
    w = world(prefetch)
    w.add("h", **LONG)
    w.step()
    w.add("a", adapter="x", **WIDE)
    for _ in range(2):
        w.step()
    small = [w.add("b", adapter="y") for _ in range(4)]
    w.drain()
    assert loads(w) == ["x", "y"]
    assert all(request_id not in w.scheduler._requests for request_id in small)


def test_no_load_starts_while_blocks_are_kept_for_one_that_has_loaded_before() -> None:
    w = world(adapter_bytes=4)
    w.add("h", **LONG)
    short = w.add("h", adapter="z", num_output_tokens=30)
    until_there(w, "h", "z")
    a = w.add("a", adapter="x", **WIDE)
    w.step()
    b = w.add("b", adapter="y")
    w.step()
    assert w.residency.state(AdapterKey("a", "x")) is State.LOADING
    assert w.policy.main.reserved is w.scheduler._requests[b]
    while a in w.policy.main._committed:
        assert "y" not in loads(w)
        w.step()
    assert short not in w.scheduler._requests
    w.drain()


def test_a_charge_covers_one_load_also_where_what_was_loaded_is_evicted() -> None:
    """`flex` keeps nothing: it is charged anew, load included, and what it used stays charged."""
    w = world()
    w.add("h", **LONG)
    w.step()
    flex = w.add("a", adapter="x", service_tier="flex", **WIDE)
    until_there(w, "a", "x")
    queue = w.policy.flex
    assert flex in queue._committed
    w.add("b", adapter="y")
    while w.scheduler.has_work:
        w.step()
        if flex in queue._committed:
            assert queue.share._charges[flex].used_ms <= LOAD_MS
    assert loads(w) == ["x", "y", "x"]
    w.check()


def test_a_committed_request_of_flex_is_in_nobodys_way() -> None:
    """It has loaded its adapter, and lacks blocks; another needs the memory."""
    w = world()
    w.add("h", **LONG)
    w.step()
    w.add("a", adapter="x", service_tier="flex", **WIDE)
    until_there(w, "a", "x")
    w.add("b", adapter="y")
    w.step()
    assert loads(w) == ["x", "y"]
    w.drain()


@pytest.mark.parametrize("when", ["on its way", "there"])
def test_the_lease_of_a_request_that_is_aborted_ends_with_it(when: str) -> None:
    w = world()
    w.add("h", **LONG)
    w.step()
    a = w.add("a", adapter="x", **WIDE)
    w.step()
    if when == "there":
        until_there(w, "a", "x")
    assert w.residency.num_leases == 1
    w.abort(a)
    assert w.residency.num_leases == 0
    w.drain()


def test_a_load_that_fails_ends_leases_and_another_may_be_started() -> None:
    w = world()
    w.add("a", adapter="x")
    w.step()
    assert w.residency.num_leases == 1
    w.fail_load(AdapterKey("a", "x"))
    assert w.residency.num_leases == 0
    w.add("a", adapter="x")
    w.drain()
    assert loads(w) == ["x", "x"]


def test_two_that_keep_adapters_both_run_where_there_are_blocks_for_one() -> None:
    w = world(adapter_bytes=4)
    w.add("h", **LONG)
    w.step()
    for tenant in "ab":
        w.add(tenant, adapter="x", **WIDE)
    for tenant in "ab":
        until_there(w, tenant, "x")
    assert w.residency.num_leases == 2
    w.drain()
    assert sorted(loads(w)) == ["x", "x"]
