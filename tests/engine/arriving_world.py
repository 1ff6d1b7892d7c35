"""A scheduler with adapters that come layer by layer, when the test says so."""

from tests.engine import build
from tests.engine.linear_costs import LinearCosts
from tests.engine.simulated_runner import SimulatedRunner

from loraplex.adapters.residency import Residency
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.admission import AdmissionPolicy
from loraplex.engine.events import Events
from loraplex.engine.plan import StepPlan

NUM_LAYERS = 4
NUM_BYTES = 8


class World:
    """Each adapter has four layers; a token takes a millisecond."""

    def __init__(
        self,
        route: str = "layer-wise",
        policy: AdmissionPolicy | None = None,
        adapter_bytes: int = 100,
        **config: object,
    ) -> None:
        self.residency = Residency(adapter_bytes)
        values = {"route": route, "num_assistants": int(route == "assist"), "num_blocks": 32}
        self.config = build.config(**(values | config))
        self.costs = LinearCosts(num_steps=1000)
        self.scheduler = build.scheduler(self.config, self.residency, policy, self.costs)
        self.runner = SimulatedRunner(self.config.num_blocks, self.config.block_size)
        self.loading: list[AdapterKey] = []
        self.now = 0.0
        self.plan = StepPlan(0)
        self.tokens: dict[str, list[int]] = {}
        self.ended: dict[str, str] = {}
        self.events = Events()

    def add(self, request_id: str, adapter: str | None = None, **values: object) -> None:
        request = build.submit(request_id, adapter=adapter, **values)
        self.scheduler.add(request, self.now, 0 if adapter is None else NUM_BYTES)

    def come(self, adapter: str, num_layers: int, tenant: str = "t") -> None:
        """So many of its layers are there."""
        key = AdapterKey(tenant, adapter)
        self.runner.layers[key] = num_layers, NUM_LAYERS
        self.residency.note_layers(key, num_layers, NUM_LAYERS, is_open=True)

    def arrive(self, adapter: str, tenant: str = "t") -> None:
        key = AdapterKey(tenant, adapter)
        self.loading.remove(key)
        self.runner.layers[key] = NUM_LAYERS, NUM_LAYERS
        self.residency.finish_load(key)

    def fail(self, adapter: str, tenant: str = "t") -> None:
        key = AdapterKey(tenant, adapter)
        self.loading.remove(key)
        self.residency.fail_load(key)
        self.scheduler.fail_adapter(key, "adapter_load_failed", "unreadable")
        self.take(self.scheduler.take_events())

    def step(self, ms: float | None = None) -> StepPlan:
        """One step, as the engine makes it."""
        self.plan = plan = self.scheduler.plan(self.now)
        self.scheduler.check()
        for key in plan.evictions:
            if key in self.loading:
                self.loading.remove(key)
        self.loading += [*plan.loads, *plan.prefetches]
        for key in (*plan.loads, *plan.prefetches):
            self.runner.layers[key] = 0, NUM_LAYERS
        if not plan.num_requests:
            self.take(self.scheduler.take_events())
            return plan
        self.runner.copy(plan)
        step_ms = float(plan.num_tokens) if ms is None else ms
        self.now += step_ms / 1e3
        self.take(self.scheduler.commit(plan, self.runner.run(plan), step_ms))
        self.scheduler.check()
        self.runner.poison(self.scheduler.blocks.pool.free())
        return plan

    def take(self, events: Events) -> None:
        self.events = events
        for tokens in events.tokens:
            self.tokens.setdefault(tokens.request_id, []).extend(tokens.ids)
        self.ended |= {each.request_id: each.reason for each in events.finished}
        self.ended |= {each.request_id: each.code for each in events.failed}

    @property
    def passes(self) -> dict[str, tuple[int, bool]]:
        """Of the last plan: how far each may come, and whether it can."""
        return {c.chunk.request_id: (c.until_layer, c.advances) for c in self.plan.cold}


def begun(world: World, until_layer: int = NUM_LAYERS, **values: object) -> None:
    """A request whose adapter has two layers of four, in the middle of its pass, which may come as
    far as this in its first step: to the last layer, if it is alone there."""
    world.add("a", adapter="x", **values)
    world.step()
    world.come("x", 2)
    world.step()
    assert world.passes == {"a": (until_layer, True)}
