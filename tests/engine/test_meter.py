"""Whose time a step was, and what the cost model learns from it."""

from collections import Counter
from collections.abc import Mapping

import pytest
from tests.engine.arriving_world import World

from loraplex.engine.plan import StepOutput, StepPlan

STEP_MS = 500.0


def assisted_beside_a_decode() -> tuple[World, StepPlan, Counter[str]]:
    """A step in which the host computes all of an adapter, and somebody decodes."""
    world = World("assist")
    told: Counter[str] = Counter()
    world.add("b", max_tokens=30)
    world.add("a", adapter="x", num_prompt_tokens=8)
    world.step()
    world.come("x", 0)
    plan = world.scheduler.plan(world.now)
    assert plan.cold
    assert plan.decodes
    divide = world.scheduler._meter._tell

    def tell(used_ms: Mapping[str, float]) -> None:
        told.update(used_ms)
        divide(used_ms)

    world.scheduler._meter._tell = tell
    return world, plan, told


def commit(world: World, plan: StepPlan) -> StepOutput:
    output = world.runner.run(plan)
    world.take(world.scheduler.commit(plan, output, STEP_MS))
    return output


def test_nothing_is_learned_from_a_step_that_the_host_assisted() -> None:
    world, plan, _ = assisted_beside_a_decode()
    before = world.costs.num_steps
    assert commit(world, plan).cold["a"].num_host_layers
    assert world.costs.num_steps == before
    world.step()
    assert world.costs.num_steps == before + 1


def test_what_an_assisted_step_takes_longer_is_used_by_the_one_that_was_assisted() -> None:
    world, plan, told = assisted_beside_a_decode()
    before_ms = world.now * 1e3
    commit(world, plan)
    world.scheduler.abort("b", world.now)
    assert told["b"] < 10
    assert told.total() == pytest.approx(before_ms + STEP_MS)
