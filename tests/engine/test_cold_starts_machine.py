"""The same when requests begin on adapters of which layers are still to come."""

from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from tests.engine.test_scheduler_machine import SchedulerMachine

from loraplex.adapters.residency_counts import Route
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.plan import StepPlan

OF_LAYERS = 3


class ColdMachine(SchedulerMachine):
    """Loads open and come layer by layer, in any number of steps; they fail, or are dropped, with
    requests in the middle of a pass."""

    num_host_blocks = 7
    cold: ClassVar[Mapping[str, object]] = {"route": "layer-wise", "max_cold_passes": 2}

    def plan(self) -> StepPlan:
        plan = super().plan()
        for key in (*plan.loads, *plan.prefetches):
            self.runner.layers[key] = 0, OF_LAYERS
        decodes = set(plan.decodes.roster.keys)
        for cold in plan.cold:
            assert cold.chunk.request_id not in decodes
            assert cold.wait_ms == 0 or not (decodes or plan.prefills)
        assert plan.num_requests or not any(cold.advances for cold in plan.cold)
        return plan

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), num_layers=st.integers(0, OF_LAYERS))
    def layers_come(self, data: st.DataObject, num_layers: int) -> None:
        key = data.draw(st.sampled_from(self.loading))
        there = max(num_layers, self.runner.layers[key][0])
        self.runner.layers[key] = there, OF_LAYERS
        self.residency.note_layers(key, there, OF_LAYERS, is_open=True)

    @rule(adapter=st.sampled_from(["x", "y", "z"]))
    def drop(self, adapter: str) -> None:
        key = AdapterKey("t", adapter)
        self.residency.drop(key)
        self.scheduler.forget(key)

    def end(self, key: AdapterKey, *, works: bool) -> None:
        if works:
            self.runner.layers[key] = OF_LAYERS, OF_LAYERS
        super().end(key, works=works)


class AssistMachine(ColdMachine):
    """The same with the host's help, and prefetches that may be used on their way."""

    cold: ClassVar[Mapping[str, object]] = {
        "route": "assist",
        "num_assistants": 1,
        "prefetch": "queue",
    }


class ChoosingMachine(ColdMachine):
    """The same with a choice that may change while a request waits, and learns from a clock and a
    link that takes as long as a prompt; and another border."""

    adapter_bytes = 2
    is_greedy = True
    border: ClassVar[Mapping[str, int]] = {
        "num_blocks": 16,
        "min_blocks": 12,
        "lent_block_bytes": 1,
    }
    cold: ClassVar[Mapping[str, object]] = {"route": "choose"}
    step_ms = 4.0
    num_learned_steps = 1000

    def __init__(self) -> None:
        super().__init__()
        self.scheduler.routes.copy_bytes_per_s = 100.0

    @rule(num=st.integers(0, 1))
    def assistants_die_or_come(self, num: int) -> None:
        self.scheduler.routes.num_assistants = num


def test_each_route_is_taken_where_one_is_chosen() -> None:
    taken: Counter[Route] = Counter()
    num_learned: list[int] = []

    class Watched(ChoosingMachine):
        def teardown(self) -> None:
            super().teardown()
            taken.update(self.residency.counts.routes)
            num_learned.append(self.scheduler.routes.regret.num_requests)

    run_state_machine_as_test(Watched, settings=ChoosingMachine.TestCase.settings)
    assert taken.keys() >= {"resident", "wait", "join", "layer-wise", "assist"}
    assert sum(num_learned) > 0


for machine in (ColdMachine, AssistMachine, ChoosingMachine):
    machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestColdMachine = ColdMachine.TestCase
TestAssistMachine = AssistMachine.TestCase
TestChoosingMachine = ChoosingMachine.TestCase
del SchedulerMachine  # its own cases run where it is defined
