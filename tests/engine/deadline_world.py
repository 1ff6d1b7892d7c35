"""A scheduler on a machine on which each token takes a millisecond."""

from tests.engine import build
from tests.engine.linear_costs import KnownLengths, LinearCosts
from tests.engine.simulated_runner import SimulatedRunner

from loraplex.adapters.residency import Residency
from loraplex.engine.admission import AdmissionPolicy
from loraplex.engine.costs_port import StepCosts
from loraplex.engine.events import Events
from loraplex.engine.scheduler import Scheduler


class World:
    """See above; steps are run one by one."""

    def __init__(
        self,
        policy: AdmissionPolicy | None = None,
        costs: StepCosts | None = None,
        **config: object,
    ) -> None:
        costs = costs or LinearCosts(num_steps=1000)
        self.residency = Residency(100)
        self.scheduler: Scheduler = build.scheduler(
            build.config(**config), self.residency, policy, costs, KnownLengths()
        )
        self.costs = costs
        self.runner = SimulatedRunner(16, 4)
        self.now = 0.0
        self.events = Events()

    def add(self, request_id: str, deadline_ms: float | None = None, **submit: object) -> None:
        num_bytes = 0 if submit.get("adapter") is None else 10
        request = build.submit(request_id, ttft_deadline_ms=deadline_ms, **submit)
        self.scheduler.add(request, self.now, num_bytes)

    def step(self) -> Events:
        plan = self.scheduler.plan(self.now)
        ms = float(plan.num_tokens)
        output = self.runner.run(plan)
        self.now += ms / 1e3
        events = self.scheduler.commit(plan, output, ms)
        for key in plan.loads:
            self.residency.finish_load(key)
        self.scheduler.check()
        self.events.extend(events)
        return events

    def run(self) -> None:
        while self.scheduler.has_work:
            self.step()
