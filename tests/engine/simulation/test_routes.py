"""Adapters come beside steps, inside them, or while prompts are computed."""

from dataclasses import replace
from math import inf

import pytest
from tests.engine.simulation import worlds

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.plan import StepPlan
from loraplex.engine.simulation.copies import CopiesInside, CopyLink
from loraplex.engine.simulation.experiment import Setup, run_policy
from loraplex.engine.simulation.metrics import Metrics, measure
from loraplex.engine.simulation.routes import Copying, Route
from loraplex.engine.simulation.traces import TraceRequest

A, B, C, D = (AdapterKey("t", name) for name in "abcd")


def ttft_s(route: Route, **changes: object) -> float:
    """Mean, of requests that do not meet, each on an adapter of its own, which takes 0.8 s."""
    load = tuple(TraceRequest(2.0 * i, "t", 400, 1, adapter=f"a{i}", rank=8) for i in range(1, 9))
    device = worlds.device(copy_bytes_per_s=1e4, max_step_tokens=400, **changes)
    run = run_policy(Setup(device, load, slots=2, copying=Copying("none", route=route)), "fcfs")
    return measure(run).p50_ttft_s


def test_a_copy_is_waited_for_to_its_end_before_the_prompt_begins() -> None:
    assert ttft_s("wait") == pytest.approx(0.8 + 0.052, abs=0.01)


def test_layers_that_are_copied_while_others_are_computed_are_not_waited_for() -> None:
    assert ttft_s("layer-wise") == pytest.approx(0.8 + 0.052 / 32, abs=0.02)


def test_a_host_that_keeps_up_hides_the_copy_and_one_that_does_not_is_not_chosen() -> None:
    # Its slot is open at once: not even the first of 32 layers, which takes 25 ms, is waited for.
    assert ttft_s("assist", host_operations_per_s=1e9) == pytest.approx(0.052, abs=0.003)
    slow = {"host_operations_per_s": 1e5}
    assert ttft_s("assist", **slow) > ttft_s("layer-wise")
    assert ttft_s("choose", **slow) <= ttft_s("wait", **slow) * 1.02


def test_layers_of_a_copy_come_one_after_the_other() -> None:
    now = [0.0]
    link = CopyLink(1000.0, lambda _: 1000, lambda: now[0])
    link.start(StepPlan(1, (), (A,)))
    assert link.next_layer_s == 0.0, "its slot is open"
    assert dict(link.progress()) == {A: 0}
    assert link.layer_arrival_s(A, 0) == link.next_layer_s == pytest.approx(1 / 32, abs=0.002)
    now[0] = 0.51
    assert dict(link.progress()) == {A: 16}
    assert link.layer_arrival_s(A, 31) == link.next_arrival_s == pytest.approx(1.0, abs=0.002)


def test_of_loads_and_of_prefetches_the_next_alone_may_be_used_in_part() -> None:
    link = CopyLink(1000.0, lambda _: 1000, lambda: 0.0)
    link.start(StepPlan(1, loads=(A, B), prefetches=(C, D)))
    assert dict(link.progress()) == {A: 0, C: 0}


def test_a_link_copies_no_more_than_is_granted_until_the_next_step() -> None:
    now = [0.0]
    link = CopyLink(1000.0, lambda _: 1000, lambda: now[0])
    link.start(StepPlan(1, loads=(A,), copy_bytes=250))
    assert link.layer_arrival_s(A, 6) < 0.25
    assert link.layer_arrival_s(A, 8) == inf
    now[0] = 5.0
    assert link.arrivals() == []
    assert dict(link.progress()) == {A: 8}
    link.start(StepPlan(2, copy_bytes=0))
    now[0] = 6.0
    assert dict(link.progress()) == {A: 8}
    link.start(StepPlan(3))
    assert link.next_arrival_s == pytest.approx(6.75)
    now[0] = link.next_arrival_s
    assert [arrival.key for arrival in link.arrivals()] == [A]


def test_a_load_inside_a_step_makes_the_step_longer_once() -> None:
    link = CopiesInside(1000.0, lambda _: 500, lambda: 0.0)
    link.start(StepPlan(1, (), (A,)))
    assert link.take_stall_ms() == pytest.approx(501.0)
    assert link.take_stall_ms() == 0.0


def test_loads_inside_steps_interrupt_those_that_decode_and_loads_beside_them_do_not() -> None:
    shares = {}
    load = worlds.requests(60, gap_s=0.05, adapters=5)
    for route in ("inside", "wait"):
        device = worlds.device(copy_bytes_per_s=2e5)
        setup = Setup(device, load, slots=4, copying=Copying("none", route=route))
        metrics: Metrics = measure(run_policy(setup, "fcfs", "lru"))
        shares[route] = metrics.load_interruption_share
        assert metrics.load_interruption_share <= metrics.interruption_share
    assert shares["inside"] > 0.2
    assert shares["wait"] == 0.0


def test_a_prefetch_that_every_request_uses_has_a_precision_of_one() -> None:
    load = tuple(
        replace(request, arrival_s=0.0) for request in worlds.requests(24, tenants=2, adapters=4)
    )
    device = worlds.device(copy_bytes_per_s=2e5, max_running=2)
    copying = Copying("queue", max_transfer_bytes=100_000)
    metrics = measure(run_policy(Setup(device, load, slots=8, copying=copying)))
    assert metrics.prefetch_precision == 1.0
    assert metrics.prefetch_recall > 0.3
    assert metrics.prefetch_wasted_bytes == 0


def test_a_choice_that_waits_finds_in_time_a_route_that_is_better_by_less_than_its_margin() -> None:
    load = tuple(TraceRequest(i, "t", 400, 1, adapter=f"a{i}", rank=8) for i in range(1, 91))
    ttfts_s = {}
    for route in ("wait", "layer-wise", "choose"):
        device = worlds.device(copy_bytes_per_s=1e8, bytes_per_rank=100_000, max_step_tokens=400)
        copying = Copying("none", route=route, num_assistants=0)
        run = run_policy(Setup(device, load, slots=2, copying=copying), "fcfs")
        ttfts_s[route] = [record.ttft_s for record in run.records]
    assert 1.1 < ttfts_s["wait"][-1] / ttfts_s["layer-wise"][-1] < 1.2
    assert sum(ttfts_s["choose"]) < sum(ttfts_s["wait"])
    # 64 steps are learned first, and eight outcomes then.
    assert ttfts_s["choose"][75:] == pytest.approx(ttfts_s["layer-wise"][75:])
