"""How much of prompts a step computes beside requests that must not be late."""

from math import inf

import pytest
from tests.engine import build
from tests.engine.linear_costs import LinearCosts
from tests.engine.simulated_runner import SimulatedRunner

from loraplex.engine.config import Targets
from loraplex.engine.cost_features import StepFeatures
from loraplex.engine.scheduler import Scheduler
from loraplex.engine.step_budget import prefill_tokens

TARGETS = {"default": Targets(ttft_ms=100.0, tpot_ms=10.0), "priority": Targets(50.0, 5.0)}


def step_of(num_decodes: int) -> StepFeatures:
    return StepFeatures(num_decodes, num_decodes, 0, 0.0, 0.0, 0)


@pytest.mark.parametrize(
    ("slack", "expected"), [(inf, 96), (64.0, 60), (5.0, 8), (-100.0, 8), (12.5, 8)]
)
def test_prompts_get_what_fits_into_the_slack_but_always_something(
    slack: float, expected: int
) -> None:
    costs = LinearCosts(constant_ms=1.0)
    assert prefill_tokens(costs, step_of(3), slack, 96, 8) == pytest.approx(expected, abs=4)


def decoding(num_steps_learned: int = 1000, **config: object) -> tuple[Scheduler, SimulatedRunner]:
    """A request that decodes, behind its target by nothing at the time 0.1."""
    values = {"targets": TARGETS, "min_prefill_tokens": 2, "max_step_tokens": 32}
    costs = LinearCosts(num_steps=num_steps_learned)
    scheduler = build.scheduler(build.config(**(values | config)), costs=costs)
    runner = SimulatedRunner(16, 4)
    scheduler.add(build.submit("a", 3, max_tokens=9), now=0.0)
    plan = scheduler.plan(0.0)
    scheduler.commit(plan, runner.run(plan))
    return scheduler, runner


def prompt_tokens(scheduler: Scheduler, now: float) -> int:
    """Tokens of the request b in the next step."""
    (chunk,) = [c for c in scheduler.plan(now).chunks if c.request_id == "b"]
    return len(chunk.token_ids)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (0.0, 31),  # the next token is due at 110 ms
        (0.09, 19),  # in 20 ms
        (0.2, 9),  # it is late, and has a right to its pace
    ],
)
def test_a_prompt_is_cut_so_that_the_next_token_comes_in_time(now: float, expected: int) -> None:
    scheduler, _ = decoding()
    scheduler.add(build.submit("b", 36), now=now)
    assert prompt_tokens(scheduler, now) == pytest.approx(expected, abs=2)


def test_the_tightest_tier_of_those_that_decode_counts() -> None:
    scheduler, runner = decoding()
    scheduler.add(build.submit("c", 3, service_tier="priority"), now=0.0)
    plan = scheduler.plan(0.0)
    scheduler.commit(plan, runner.run(plan))
    scheduler.add(build.submit("b", 30), now=0.2)
    assert prompt_tokens(scheduler, 0.2) <= 4


def test_before_the_cost_model_has_learned_the_limit_of_a_step_rules_alone() -> None:
    scheduler, _ = decoding(num_steps_learned=0)
    scheduler.add(build.submit("b", 36), now=0.2)
    assert prompt_tokens(scheduler, 0.2) == 31


def test_without_targets_the_limit_of_a_step_rules_alone() -> None:
    scheduler, _ = decoding(targets={})
    scheduler.add(build.submit("b", 36), now=0.2)
    assert prompt_tokens(scheduler, 0.2) == 31
