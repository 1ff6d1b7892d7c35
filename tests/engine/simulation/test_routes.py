"""Adapters come beside steps, inside them, or while prompts are computed."""

from dataclasses import replace

import pytest
from tests.engine.simulation import worlds

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.plan import StepPlan
from loraplex.engine.simulation.copies import CopiesInside
from loraplex.engine.simulation.experiment import Setup, run_policy
from loraplex.engine.simulation.metrics import Metrics, measure
from loraplex.engine.simulation.routes import Copying, Route, make_link

A = AdapterKey("t", "a")


def usable_after_s(route: Route, prompt_tokens: int, **device: object) -> float:
    """When an adapter whose copy takes 1 s may be used."""
    now = [0.0]
    made = worlds.device(copy_bytes_per_s=1000.0, max_step_tokens=4096, **device)
    link = make_link(route, made, lambda _: 1000, lambda _: prompt_tokens, lambda: now[0])
    link.start(StepPlan(1, (), (A,)))
    return link.next_arrival_s


def test_a_copy_beside_the_steps_is_waited_for_to_its_end() -> None:
    assert usable_after_s("beside", 2000) == pytest.approx(1.0, abs=0.01)


def test_layers_that_are_copied_while_others_are_computed_are_not_waited_for() -> None:
    # A prompt of 2000 tokens takes 212 ms, in which 7 of 8 groups can follow the first.
    assert usable_after_s("layer-wise", 2000) == pytest.approx(1 - 0.212 * 7 / 8, abs=0.01)
    assert usable_after_s("layer-wise", 1) > usable_after_s("layer-wise", 2000)


def test_a_host_that_keeps_up_lets_a_prompt_begin_at_once_and_a_slower_one_does_not() -> None:
    assert usable_after_s("assisted", 2000, host_operations_per_s=1e9) <= 0.0
    slow = usable_after_s("assisted", 2000, host_operations_per_s=1e6)
    assert slow == usable_after_s("layer-wise", 2000)


def test_a_load_inside_a_step_makes_the_step_longer_once() -> None:
    link = CopiesInside(1000.0, lambda _: 500, lambda: 0.0)
    link.start(StepPlan(1, (), (A,)))
    assert link.take_stall_ms() == pytest.approx(501.0)
    assert link.take_stall_ms() == 0.0


def test_loads_inside_steps_interrupt_those_that_decode_and_loads_beside_them_do_not() -> None:
    shares = {}
    load = worlds.requests(60, gap_s=0.05, adapters=5)
    for route in ("inside", "beside"):
        device = worlds.device(copy_bytes_per_s=2e5)
        setup = Setup(device, load, slots=4, copying=Copying("none", route=route))
        metrics: Metrics = measure(run_policy(setup, "fcfs", "lru"))
        shares[route] = metrics.load_interruption_share
        assert metrics.load_interruption_share <= metrics.interruption_share
    assert shares["inside"] > 0.2
    assert shares["beside"] == 0.0


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
