"""How much of prompts a step computes beside requests that must not be late."""

from math import inf

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.engine import build
from tests.engine.linear_costs import LinearCosts
from tests.engine.simulated_runner import SimulatedRunner

from loraplex.engine.config import Targets
from loraplex.engine.cost_features import Floats, StepFeatures
from loraplex.engine.scheduler import Scheduler
from loraplex.engine.step_budget import MAX_DEFERRALS, StepBudget

TARGETS = {"default": Targets(ttft_ms=100.0, tpot_ms=10.0), "priority": Targets(50.0, 5.0)}


def step_of(num_decodes: int) -> StepFeatures:
    return StepFeatures(num_decodes, num_decodes, 0, 0.0, 0.0, 0)


class SteppedCosts(LinearCosts):
    """As hardware that computes 128 rows in the time of one."""

    def predict_chunks_ms(
        self, step: StepFeatures, chunk_tokens: NDArray[np.int64], start: int, longest: float
    ) -> Floats:
        return self.constant_ms + 10.0 * np.ceil((step.num_tokens + chunk_tokens) / 128)


@pytest.mark.parametrize(
    ("slack", "expected"), [(inf, 96), (64.0, 60), (5.0, 8), (-100.0, 8), (12.5, 8)]
)
def test_prompts_get_what_fits_into_the_slack_but_always_something(
    slack: float, expected: int
) -> None:
    budget = StepBudget(LinearCosts(constant_ms=1.0), build.config(min_prefill_tokens=8))
    assert budget.prefill_tokens(step_of(3), slack, 96)[1] == pytest.approx(expected, abs=4)


def test_a_step_ends_where_the_hardware_is_full_rather_than_just_behind_it() -> None:
    budget = StepBudget(SteppedCosts(), build.config())
    assert budget.prefill_tokens(step_of(8), inf, 140)[1] == 120


def test_a_step_that_is_worth_it_goes_beyond_where_the_hardware_is_full() -> None:
    budget = StepBudget(SteppedCosts(constant_ms=30.0), build.config())
    assert budget.prefill_tokens(step_of(8), inf, 240)[1] == 240


def test_what_does_not_fit_into_the_slack_is_not_taken_for_its_rate() -> None:
    budget = StepBudget(SteppedCosts(constant_ms=30.0), build.config())
    assert budget.prefill_tokens(step_of(8), 45.0, 240)[1] == 120


def test_tokens_are_put_off_for_the_hardware_a_bounded_number_of_times_in_a_row() -> None:
    budget = StepBudget(SteppedCosts(), build.config())
    sizes = [budget.prefill_tokens(step_of(8), inf, 140)[1] for _ in range(2 * MAX_DEFERRALS + 2)]
    assert sizes == [*[120] * MAX_DEFERRALS, 140] * 2


def test_a_step_without_decodes_takes_all_that_there_is() -> None:
    costs = SteppedCosts(num_steps=1000)
    scheduler = build.scheduler(
        build.config(max_step_tokens=140, num_blocks=64, max_model_len=200), costs=costs
    )
    scheduler.add(build.submit("a", 140), now=0.0)
    assert scheduler.plan(0.0).num_tokens == 140


def test_a_prompt_beside_decodes_is_cut_where_the_hardware_is_full_and_goes_on() -> None:
    costs = SteppedCosts(num_steps=1000)
    scheduler = build.scheduler(
        build.config(max_step_tokens=200, num_blocks=64, max_model_len=200), costs=costs
    )
    runner = SimulatedRunner(64, 4)
    scheduler.add(build.submit("a", 3, max_tokens=9), now=0.0)
    plan = scheduler.plan(0.0)
    scheduler.commit(plan, runner.run(plan))
    scheduler.add(build.submit("b", 130), now=0.0)
    sizes = []
    for _ in range(2):
        plan = scheduler.plan(0.0)
        sizes.append(plan.num_tokens)
        scheduler.commit(plan, runner.run(plan))
    assert sizes == [128, 4]


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
