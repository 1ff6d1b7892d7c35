"""The promises of fair admission hold where requests begin on adapters that are on their way."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize
from tests.engine.arriving_fair_world import ArrivingWorld
from tests.engine.fair_world import SETTINGS
from tests.engine.linear_costs import LinearCosts
from tests.engine.test_fair_admission import FairMachine


class ColdFairMachine(FairMachine):
    """See `FairMachine`."""

    @initialize(
        constant_ms=st.sampled_from([0.0, 0.5]),
        num_blocks=st.sampled_from([12, 16, 24]),
        prefetch=st.sampled_from(["none", "queue", "all"]),
        max_drain_ms=st.sampled_from([0.0, 30.0]),
        prefix_cache=st.booleans(),
        max_transfer_bytes=st.sampled_from([None, 1, 4]),
        route=st.sampled_from(["choose", "layer-wise", "assist"]),
        num_assistants=st.integers(0, 1),
        max_cold_passes=st.sampled_from([1, 4]),
    )
    def begin(self, **config: object) -> None:
        costs = LinearCosts(constant_ms=config.pop("constant_ms"), load_ms=5.0)
        caps = replace(SETTINGS, max_drain_ms=config.pop("max_drain_ms"))
        self.world = ArrivingWorld(caps, costs=costs, **config)
        self.open: list[str] = []


ColdFairMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestColdFairMachine = ColdFairMachine.TestCase
del FairMachine  # its own cases run where it is defined


def test_requests_begin_on_layers_that_have_come_in_their_tenants_turn() -> None:
    world = ArrivingWorld(route="layer-wise", num_blocks=24)
    for i in range(12):
        for tenant in "ab":
            world.add(tenant, 8, 2, adapter=f"x{i % 3}")
    world.drain()
    assert world.num_passes >= 4
    assert world.auditor.use_of_bound < 1
