"""What a request is told that it waited for."""

from dataclasses import replace

import pytest
from tests.engine import build
from tests.engine.fair_world import SETTINGS, World
from tests.engine.linear_costs import LinearCosts
from tests.engine.simulated_runner import SimulatedRunner

from loraplex.engine.config import Targets
from loraplex.engine.protocol import Finished
from loraplex.engine.waits import WaitClock


def test_a_clock_adds_up_its_own_reasons_and_those_of_whom_it_follows() -> None:
    worker = WaitClock(0.0)
    worker.switch("slot", 0.0)
    tenant = WaitClock(1.0, worker)
    request = WaitClock(2.0, tenant)
    tenant.switch("share", 3.0)
    worker.switch("kv", 4.0)
    tenant.switch(None, 5.0)
    request.switch("load", 7.0)
    request.switch(None, 8.0)
    assert request.sums_ms(10.0) == pytest.approx(
        {"slot": 1000, "share": 2000, "kv": 2000 + 2000, "load": 1000}
    )
    assert request.reason() == "kv"
    request.stop(11.0)
    assert sum(request.sums_ms(99.0).values()) == pytest.approx(9000)


def endings(world: World) -> dict[str, Finished]:
    ended: dict[str, Finished] = {}
    while world.scheduler.has_work:
        ended |= {f.request_id: f for f in world.step().finished}
    return ended


def waited(world: World, request_id: str) -> set[str]:
    """The reasons; times add up to the time in the queue."""
    finished = endings(world)[request_id]
    assert sum(finished.waited_ms.values()) == pytest.approx(finished.queue_ms, abs=0.01)
    return {reason for reason, ms in finished.waited_ms.items() if ms > 0}


def test_for_a_slot() -> None:
    world = World(replace(SETTINGS, max_open=1))
    world.add("a")
    world.step()
    assert waited(world, world.add("a")) == {"slot"}


def test_for_its_tenants_turn() -> None:
    world = World(replace(SETTINGS, overdraft_ms=0.0), num_blocks=12)
    world.add("a", num_prompt_tokens=20, num_output_tokens=20)
    world.step()
    late = world.add("a")
    world.add("b", num_prompt_tokens=40)
    assert endings(world)[late].waited_ms["share"] > 0


def test_for_kv_blocks() -> None:
    world = World(num_blocks=12)
    world.add("a", num_prompt_tokens=14, num_output_tokens=6)
    world.step()
    assert waited(world, world.add("b", num_prompt_tokens=44)) == {"kv"}


def test_for_its_adapter_and_for_memory_for_it() -> None:
    world = World(adapter_bytes=2, costs=LinearCosts(load_ms=2.0))
    world.add("a", adapter="x", num_output_tokens=20)
    world.step()
    world.step()
    assert waited(world, world.add("b", adapter="y")) == {"adapter_memory", "load"}


def test_for_a_full_step() -> None:
    world = World(max_step_tokens=16)
    world.add("a", num_prompt_tokens=40)
    world.step()
    assert waited(world, world.add("b")) == {"step"}


def test_for_anothers_deadline() -> None:
    targets = {"default": Targets(1.0, 6.0)}
    config = {"targets": targets, "min_prefill_tokens": 2}
    world = World(costs=LinearCosts(load_ms=5.0, num_steps=1000), **config)
    world.add("a", num_output_tokens=20)
    world.step()
    world.add("b", num_prompt_tokens=20)
    world.step()
    assert "deadline" in waited(world, world.add("c"))


def test_an_open_request_is_explained_and_an_unknown_one_is_not() -> None:
    scheduler, runner = build.scheduler(build.config(max_running=1)), SimulatedRunner(16, 4)
    for name in "ab":
        scheduler.add(build.submit(name), now=0.0)
    plan = scheduler.plan(0.0)
    scheduler.commit(plan, runner.run(plan))
    scheduler.plan(1.0)
    running, waiting = scheduler.explain("a", 2.0), scheduler.explain("b", 2.0)
    assert running is not None
    assert (running.state, running.waits_for, running.waited_ms) == ("running", None, {})
    assert waiting is not None
    assert (waiting.state, waiting.waits_for) == ("waiting", "slot")
    assert waiting.waited_ms == {"slot": 2000.0}
    assert scheduler.explain("c", 2.0) is None
