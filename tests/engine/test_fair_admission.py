"""The promises of fair admission, over the real scheduler and any history."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.engine.fair_world import SETTINGS, World
from tests.engine.linear_costs import LinearCosts

WEIGHTS = {"a": 1.0, "b": 1.0, "c": 3.0}


class FairMachine(RuleBasedStateMachine):
    """Three tenants and more work than the machine, its blocks and its adapter memory hold.

    `World` asserts after every action the conservation laws, the bound for every pair, and that
    nobody is overtaken too often; at the end, that nobody starves.
    """

    @initialize(
        constant_ms=st.sampled_from([0.0, 0.5]),
        num_blocks=st.sampled_from([12, 16, 24]),
        prefetch=st.sampled_from(["none", "queue", "all"]),
        max_drain_ms=st.sampled_from([0.0, 30.0]),
        prefix_cache=st.booleans(),
        max_transfer_bytes=st.sampled_from([None, 1, 4]),
    )
    def begin(self, **config: object) -> None:
        costs = LinearCosts(constant_ms=config.pop("constant_ms"), load_ms=5.0)
        caps = replace(SETTINGS, max_drain_ms=config.pop("max_drain_ms"))
        self.world = World(caps, costs=costs, **config)
        self.open: list[str] = []

    @rule(
        tenant=st.sampled_from(sorted(WEIGHTS)),
        num_tokens=st.tuples(st.integers(1, 30), st.integers(1, 18)),
        adapter=st.sampled_from([None, None, "x", "y", "z"]),
        tier=st.sampled_from(["default", "default", "default", "priority", "flex"]),
        program=st.sampled_from(["", "", "p", "q"]),
        count=st.sampled_from([1, 1, 3, 6]),
        n=st.sampled_from([1, 1, 1, 2, 3]),
    )
    def add(
        self,
        tenant: str,
        num_tokens: tuple[int, int],
        adapter: str | None,
        tier: str,
        program: str,
        count: int,
        n: int,
    ) -> None:
        for _ in range(count):
            request_id = self.world.add(
                tenant,
                *num_tokens,
                # A load for flex is in nobody's account.
                f"flex-{adapter}" if tier == "flex" and adapter else adapter,
                weight=WEIGHTS[tenant],
                service_tier=tier,
                program=program,
                max_tokens=18,
                n=n,
            )
            self.open.append(request_id)

    @rule(num_tokens=st.sampled_from([1.0, 5.0, 18.0]))
    def predict(self, num_tokens: float) -> None:
        self.world.lengths.num_tokens = num_tokens

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.world.abort(data.draw(st.sampled_from(self.open)))

    @precondition(lambda self: self.world.loading)
    @rule(data=st.data())
    def fail_load(self, data: st.DataObject) -> None:
        self.world.fail_load(data.draw(st.sampled_from(sorted(self.world.loading))))

    @rule(count=st.sampled_from([1, 1, 4, 12]))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.world.step()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain()


FairMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestFairMachine = FairMachine.TestCase
