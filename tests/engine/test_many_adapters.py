"""More adapters are asked for than are remembered."""

import pytest
from tests.engine import build
from tests.engine.simulated_runner import SimulatedRunner

from loraplex.adapters.residency import Residency
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.plan import StepPlan
from loraplex.engine.scheduler import Scheduler

MOST = 8


@pytest.fixture
def residency(monkeypatch: pytest.MonkeyPatch) -> Residency:
    monkeypatch.setattr("loraplex.adapters.demand._MAX_KNOWN", MOST)
    return Residency(100)


def ask_for_others(residency: Residency, num_others: int) -> None:
    for number in range(num_others):
        for _ in range(5):
            residency.demand.arrived(AdapterKey("other", str(number)), 2)


def step(scheduler: Scheduler, runner: SimulatedRunner, residency: Residency) -> StepPlan:
    plan = scheduler.plan(0.0)
    for key in plan.loads:
        residency.finish_load(key)
    scheduler.commit(plan, runner.run(plan))
    scheduler.check()
    return plan


def test_a_request_for_one_that_is_new_is_taken_and_may_be_aborted(residency: Residency) -> None:
    ask_for_others(residency, MOST)
    scheduler = build.scheduler(residency=residency)
    scheduler.add(build.submit("r", adapter="new"), 0.0, 2)
    scheduler.check()
    scheduler.abort("r", 0.0)
    scheduler.check()
    assert scheduler.num_waiting == 0


def test_a_request_is_preempted_whose_adapter_was_forgotten_while_it_ran(
    residency: Residency,
) -> None:
    scheduler = build.scheduler(build.config(num_blocks=12, max_step_tokens=64), residency)
    runner = SimulatedRunner(12, 4)
    for request_id in ("x", "y"):
        submit = build.submit(request_id, num_prompt_tokens=16, max_tokens=30, adapter="z")
        scheduler.add(submit, 0.0, 2)
    for _ in range(2):
        step(scheduler, runner, residency)
    assert scheduler.num_running == 2
    ask_for_others(residency, 2 * MOST)
    num_preempted = 0
    while scheduler.has_work:
        num_preempted += len(step(scheduler, runner, residency).preempted)
    assert num_preempted > 0
