"""A scheduler over a real model, in which whatever is free holds numbers that poison."""

from collections.abc import Mapping
from math import nan

from tests.engine import build
from tests.engine.linear_costs import KnownLengths, LinearCosts

from loraplex.adapters.residency import Residency
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.admission import FirstComeFirstServed
from loraplex.engine.plan import StepPlan
from loraplex.engine.protocol import Finished, Sampling, Submit
from loraplex.engine.runner import ModelRunner
from loraplex.engine.scheduler import Scheduler


class ModelWorld:
    """Runs requests to their ends; before each step all blocks that are neither held nor cached are
    filled with NaN, which one read of them would spread to the output."""

    def __init__(
        self,
        runner: ModelRunner,
        adapters: Mapping[AdapterKey, AdapterWeights] | None = None,
        **config: object,
    ) -> None:
        self.runner = runner
        self.adapters = adapters or {}
        residency = Residency(100)
        for key in self.adapters:
            residency.start_load(key, 1)
            residency.finish_load(key)
        self.scheduler = Scheduler(
            build.config(**config),
            residency,
            FirstComeFirstServed(),
            build.PlainText,
            frozenset(),
            LinearCosts(),
            KnownLengths(),
        )
        self.plans: list[StepPlan] = []
        self.tokens: dict[str, list[int]] = {}
        self.finished: dict[str, Finished] = {}

    def add(
        self, request_id: str, prompt: tuple[int, ...], num_tokens: int, **changes: object
    ) -> None:
        sampling = Sampling(max_tokens=num_tokens, temperature=0.0, seed=0)
        submit = Submit(
            request_id=request_id,
            prompt=prompt,
            sampling=sampling,
            **({"tenant": "tenant", "adapter": None} | changes),
        )
        self.scheduler.add(submit, now=0.0, adapter_bytes=0 if submit.adapter is None else 1)

    def step(self) -> None:
        plan = self.scheduler.plan(now=0.0)
        self.runner.copy(plan)
        self.poison()
        events = self.scheduler.commit(
            plan, self.runner.run(self.runner.build(plan, self.adapters))
        )
        self.scheduler.check()
        assert not events.failed
        self.plans.append(plan)
        for tokens in events.tokens:
            self.tokens.setdefault(tokens.request_id, []).extend(tokens.ids)
        self.finished |= {each.request_id: each for each in events.finished}

    def run(self) -> None:
        while self.scheduler.has_work:
            self.step()

    def poison(self) -> None:
        free = self.scheduler.blocks.pool.free()
        for cache in self.runner._caches:
            cache.keys[free] = nan
            cache.values[free] = nan

    def cached(self, request_id: str) -> int:
        return self.finished[request_id].usage.cached_tokens
