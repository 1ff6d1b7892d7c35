"""What is learned of step times before there is traffic, on a machine whose times are known."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.engine import build

from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.calibration import Calibration, shapes
from loraplex.engine.config import SchedulerConfig
from loraplex.engine.cost import CostModel, Subject
from loraplex.engine.cost_features import Row, StepFeatures
from loraplex.engine.plan import StepOutput, StepPlan

ADAPTERS = {AdapterKey("c", str(i)): AdapterWeights((1 + i) << 20, {}) for i in range(4)}


@dataclass
class TimedMachine:
    """Runs plans in no time, and says that they took what they take on this machine."""

    config: SchedulerConfig
    slowness: float = 1.0
    now: float = 0.0
    overlaps: bool = False
    plans: list[StepPlan] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def build(
        self,
        plan: StepPlan,
        adapters: Mapping[AdapterKey, AdapterWeights],
        arriving: Mapping[AdapterKey, LoadProgress],
    ) -> StepPlan:
        assert all(chunk.adapter is None or chunk.adapter in adapters for chunk in plan.chunks)
        return plan

    def keep_passes(self, plan: StepPlan) -> None:
        pass

    def abandon(self) -> None:
        pass

    def launch(self, plan: StepPlan) -> StepPlan:
        return plan

    def collect(self, plan: StepPlan) -> StepOutput:
        for chunk in plan.chunks:
            num_tokens = chunk.start + len(chunk.token_ids)
            assert len(chunk.block_table) * self.config.block_size >= num_tokens
            assert max(chunk.block_table) < self.config.num_blocks
            assert max(chunk.token_ids) < self.config.vocab_size
        assert plan.num_tokens <= self.config.max_step_tokens
        self.plans.append(plan)
        self.now += self.ms(plan) / 1e3
        return StepOutput(np.zeros(0, np.int64))

    def ms(self, plan: StepPlan) -> float:
        decodes = [chunk for chunk in plan.chunks if len(chunk.token_ids) == 1]
        read = sum(chunk.start for chunk in decodes)
        return self.slowness * (8 + 0.5 * plan.num_tokens + 0.001 * read + 2.0 * plan.num_adapters)


def worker_config(**changes: int) -> SchedulerConfig:
    values = {
        "num_blocks": 512,
        "block_size": 16,
        "max_step_tokens": 512,
        "max_running": 64,
        "max_model_len": 4096,
    }
    return build.config(**(values | changes))


def calibrated(
    machine: TimedMachine, budget_s: float, adapters: Mapping[AdapterKey, AdapterWeights] = ADAPTERS
) -> CostModel:
    costs = CostModel(Subject("model", "device"))
    Calibration(machine, machine.config, adapters, machine.clock).run(costs, budget_s)
    return costs


def test_a_few_seconds_teach_decodes_prompts_contexts_and_adapters() -> None:
    machine = TimedMachine(worker_config())
    costs = calibrated(machine, 10.0)
    assert costs.num_steps >= machine.config.min_learned_steps
    decodes = [Row(1, 300, 0.0, is_decode=True)] * 20
    assert costs.predict_ms(StepFeatures.of(decodes)) == pytest.approx(24, rel=0.1)
    prompt = StepFeatures.of([Row(200, 0, 0.0, is_decode=False)])
    assert costs.predict_ms(prompt) == pytest.approx(108, rel=0.1)
    with_two = StepFeatures.of([Row(1, 32, 1.0, is_decode=True)] * 4, num_adapters=2)
    assert costs.predict_ms(with_two) == pytest.approx(14, rel=0.15)


@pytest.mark.parametrize("slowness", [0.1, 1.0, 10.0, 40.0])
def test_it_keeps_to_its_time_on_slow_and_fast_machines(slowness: float) -> None:
    machine = TimedMachine(worker_config(), slowness)
    calibrated(machine, 3.0)
    assert machine.plans
    assert machine.now <= 3.0


def test_a_machine_whose_first_step_takes_all_the_time_runs_no_second() -> None:
    machine = TimedMachine(worker_config(), slowness=1000.0)
    calibrated(machine, 3.0)
    assert len(machine.plans) == 1


def test_it_ends_before_its_time_once_it_knows_enough() -> None:
    machine = TimedMachine(worker_config(), slowness=0.001)
    calibrated(machine, 60.0)
    assert machine.now < 1.0


def test_it_stops_when_it_is_told_to() -> None:
    machine, costs = TimedMachine(worker_config()), CostModel(Subject("model", "device"))
    calibration = Calibration(machine, machine.config, {}, machine.clock)
    calibration.run(costs, 60.0, lambda: len(machine.plans) == 5)
    assert len(machine.plans) == 5


@pytest.mark.parametrize(
    "changes",
    [
        {"max_step_tokens": 1, "max_running": 1},
        {"max_model_len": 1, "num_blocks": 1},
        {"max_running": 1},
        {"num_blocks": 1, "max_model_len": 16},
    ],
)
def test_the_smallest_workers_are_calibrated_too(changes: dict[str, int]) -> None:
    machine = TimedMachine(worker_config(**changes))
    calibrated(machine, 3.0)
    longest = max(chunk.start + len(chunk.token_ids) for p in machine.plans for chunk in p.chunks)
    assert longest <= machine.config.max_model_len


def test_two_rounds_reach_every_power_of_two() -> None:
    config = worker_config()
    tried = {shape.num_decodes for number in (1, 2) for shape in shapes(config, 0, number)}
    assert {1, 2, 4, 8, 16, 32, 64} <= tried
