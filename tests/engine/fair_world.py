"""A scheduler with a virtual clock, and an auditor who trusts none of its accounts.

The auditor sees plans and what requests are there. From these it knows what each tenant has had of
the machine: its requests' parts of each step, the loads of its adapters, and what others had to
compute again because of it.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations

from tests.engine import build
from tests.engine.linear_costs import KnownLengths, LinearCosts
from tests.engine.simulated_runner import SimulatedRunner

from loraplex.adapters.residency import Residency, State
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.events import Events
from loraplex.engine.fair_admission import FairAdmission
from loraplex.engine.fair_settings import FairSettings
from loraplex.engine.plan import Chunk, SampleSpec, StepOutput, StepPlan
from loraplex.engine.protocol import Sampling, Submit
from loraplex.engine.request import Request, Status, choice_key

SETTINGS = FairSettings(quantum_ms=20.0, overdraft_ms=40.0, max_skips=3, max_open=4)


class Violation(AssertionError):
    """A promise of the scheduler was broken."""


class EndingRunner(SimulatedRunner):
    """Ends each choice after as many tokens as it is told."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.lengths: dict[str, int] = {}

    def _sample(self, chunk: Chunk, spec: SampleSpec) -> int:
        token = super()._sample(chunk, spec)
        is_last = spec.position + 1 >= self.lengths.get(chunk.request_id, 1 << 30)
        return build.EOS if is_last else token % build.EOS


class Auditor:
    """Asserts the bound on the difference of service, for each pair and each interval in which both
    tenants have requests that wait for the machine."""

    def __init__(self, settings: FairSettings, max_request_ms: float) -> None:
        self.settings = settings
        self.max_request_ms = max_request_ms
        self.weights: dict[str, float] = {}
        self.service_ms: Counter[str] = Counter()
        self.use_of_bound = 0.0
        """The largest difference seen, as a part of what is allowed."""
        self._ranges: dict[tuple[str, str], tuple[float, float]] = {}

    def bound_ms(self, f: str, g: str) -> float:
        return sum(self._width_ms(tenant) / self.weights[tenant] for tenant in (f, g))

    def _width_ms(self, tenant: str) -> float:
        settings = self.settings
        unused = settings.max_open * (2 * self.max_request_ms + settings.overdraft_ms)
        credit_ms = max(settings.overdraft_ms, settings.max_drain_ms)
        return settings.quantum_ms * self.weights[tenant] + unused + credit_ms

    def look(self, backlogged: set[str]) -> None:
        """Call after whatever may change who is backlogged, or what somebody has had."""
        for pair in list(self._ranges):
            if not backlogged.issuperset(pair):
                del self._ranges[pair]
        for f, g in combinations(sorted(backlogged), 2):
            difference = self.service_ms[f] / self.weights[f] - self.service_ms[g] / self.weights[g]
            low, high = self._ranges.get((f, g), (difference, difference))
            low, high = min(low, difference), max(high, difference)
            self._ranges[f, g] = low, high
            use = (high - low) / self.bound_ms(f, g)
            self.use_of_bound = max(self.use_of_bound, use)
            if use > 1:
                raise Violation(f"{f} and {g} differ by {high - low} ms: {use:.2f} of the bound")


class World:
    """Tenants, a scheduler, a machine, loads that take their time."""

    def __init__(
        self,
        settings: FairSettings = SETTINGS,
        policy: Callable[[FairSettings], FairAdmission] = FairAdmission,
        costs: LinearCosts | None = None,
        adapter_bytes: int = 6,
        **config: object,
    ) -> None:
        """`policy` may break what `settings` promise; `adapter_bytes` is all memory of adapters."""
        self.settings = settings
        self.costs = costs or LinearCosts(load_ms=5.0)
        self.lengths = KnownLengths()
        self.residency = Residency(adapter_bytes)
        values = {"max_running": settings.max_open, "max_waiting_requests": 10_000}
        self.config = build.config(**(values | {"max_waiting_tokens": 1_000_000} | config))
        self.policy = policy(settings)
        self.scheduler = build.scheduler(
            self.config, self.residency, self.policy, self.costs, self.lengths
        )
        self.runner = EndingRunner(self.config.num_blocks, self.config.block_size)
        longest = self.config.max_model_len
        per_token_ms = self.costs.token_ms + self.costs.constant_ms
        self.largest_load_ms = self.costs.load_ms * adapter_bytes
        self.auditor = Auditor(settings, longest * per_token_ms + self.largest_load_ms)
        self.now = 0.0
        self.num_added = 0
        self.num_ended = 0
        self.loading: dict[AdapterKey, float] = {}
        self.sizes: dict[AdapterKey, int] = {}
        self.unclaimed: set[AdapterKey] = set()
        self.num_prefetched = 0
        self.plans: list[StepPlan] = []
        self.computed: Counter[str] = Counter()
        self.again: dict[str, dict[int, str]] = {}
        """By request, the tenant because of which it must compute a position again, if it must."""
        self.again_ms: Counter[str] = Counter()
        """By tenant, what others have computed again because of it."""
        self.overtaken: Counter[str] = Counter()
        self.num_preempted = Counter()
        self.tenants: dict[str, str] = {}

    def add(
        self,
        tenant: str,
        num_prompt_tokens: int = 4,
        num_output_tokens: int = 2,
        adapter: str | None = None,
        **values: object,
    ) -> str:
        """Submit a request whose choices will end after `num_output_tokens`. `weight` is the
        tenant's, `n` how many choices."""
        self.num_added += 1
        request_id = f"r{self.num_added:05}"
        max_tokens = values.pop("max_tokens", num_output_tokens)
        adapter_bytes = values.pop("num_bytes", 2)
        prompt = tuple((self.num_added * 7 + i) % 500 for i in range(num_prompt_tokens))
        num_choices = values.pop("n", 1)
        keys = [choice_key(request_id, choice) for choice in range(num_choices)]
        self.runner.lengths |= dict.fromkeys(keys, num_output_tokens)
        submit = Submit(
            request_id=request_id,
            tenant=tenant,
            adapter=adapter,
            prompt=prompt,
            sampling=Sampling(max_tokens=max_tokens, temperature=0.0, seed=0, n=num_choices),
            **values,
        )
        is_flex = submit.service_tier == "flex"
        if not is_flex:
            self.auditor.weights[tenant] = submit.weight
        self.tenants |= dict.fromkeys(keys, "" if is_flex else tenant)
        if adapter is not None:
            self.sizes[AdapterKey(tenant, adapter)] = adapter_bytes
        self.scheduler.add(submit, self.now, 0 if adapter is None else adapter_bytes)
        self.look()
        return request_id

    def abort(self, request_id: str) -> None:
        self.scheduler.abort(request_id, self.now)
        self.look()

    def fail_load(self, key: AdapterKey) -> None:
        """A load breaks; it has cost what it has cost."""
        del self.loading[key]
        self.unclaimed.discard(key)
        self.residency.fail_load(key)
        self.scheduler.fail_adapter(key, "adapter_load_failed", "unreadable")
        self.look()

    def step(self) -> Events:
        """One step, and the time until something can happen if there is nothing to compute."""
        self._end_loads()
        oldest = self._startable()
        uncharged = {request.key for request in self.waiting()}
        plan = self.scheduler.plan(self.now)
        self.plans.append(plan)
        self._audit_plan(plan)
        self._count_overtaking(oldest, uncharged)
        self.look()
        if not plan.num_requests:
            events = self.scheduler.take_events()
            assert self.loading or not self.scheduler.has_work, "the machine idles for nothing"
            self.now = self._next_arrival()
            return events
        output = self.runner.run(plan)
        num_rows = plan.num_tokens + self._rows_of_passes(plan, output)
        step_ms = self.costs.constant_ms + self.costs.token_ms * num_rows
        self.now += step_ms / 1e3
        self._audit_step(plan, step_ms, num_rows)
        events = self.scheduler.commit(plan, output, step_ms)
        self.num_ended += len(events.finished)
        self.look()
        return events

    def drain(self, max_steps: int = 3000) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work, "somebody starves"
        self.check()
        share = self.policy.main.share
        assert share.num_open == 0, "a charge outlived its request"

    def check(self) -> None:
        self.scheduler.check()
        self.policy.check()
        for queue in (self.policy.main, self.policy.flex):
            for key in queue._committed:
                used_ms = queue.share._charges[key].used_ms
                if not self.num_preempted[key] and used_ms > self.largest_load_ms + 1e-6:
                    raise Violation(f"{key} was charged {used_ms} ms for loads before it ran")

    def look(self) -> None:
        self.auditor.look(self.backlogged())
        self.check()

    def waiting(self) -> Iterator[Request]:
        """Main requests that wait and have not been charged."""
        committed = self.policy.main._committed
        for request in self.scheduler._requests.values():
            if (
                request.status is Status.WAITING
                and request.key not in committed
                and self.tenants[request.key]
            ):
                yield request

    def backlogged(self) -> set[str]:
        """Tenants that wait for the machine, and not for copies of adapters alone."""
        return {r.submission.submit.tenant for r in self.waiting() if not self._is_loading(r)}

    def _is_loading(self, request: Request) -> bool:
        return (
            request.adapter is not None and self.residency.state(request.adapter) is State.LOADING
        )

    def _startable(self) -> dict[str, Request]:
        """Each tenant's oldest request, unless it waits for a load."""
        oldest: dict[str, Request] = {}
        for request in self.waiting():
            if not self.num_preempted[request.key]:
                oldest.setdefault(request.submission.submit.tenant, request)
        return {t: request for t, request in oldest.items() if not self._is_loading(request)}

    def _count_overtaking(self, oldest: dict[str, Request], uncharged: set[str]) -> None:
        """Nobody is overtaken more often than is promised, in its tenant or while it is next."""
        committed = self.policy.main._committed
        left = [
            request
            for request in self.scheduler._requests.values()
            if self.tenants[request.key]
            and request.key in uncharged
            and (request.status is Status.RUNNING or request.key in committed)
        ]
        for tenant, request in oldest.items():
            still_waits = request.status is Status.WAITING and request.key not in committed
            if still_waits and not self._is_loading(request):
                self.overtaken[request.key] += sum(
                    r.submission.submit.tenant == tenant and not self.num_preempted[r.key]
                    for r in left
                )
                if self.overtaken[request.key] > self.settings.max_skips:
                    raise Violation(f"{request.key} was overtaken too often by its tenant's own")
        reserved = self.policy.main.reserved
        if reserved is not None:
            assert not self.scheduler._yielding, "flex holds what another needs"
            skips = self.policy.main.num_skips(reserved)
            if skips > self.settings.max_skips:
                raise Violation(f"{reserved.key} was overtaken too often while memory was kept")

    def _audit_plan(self, plan: StepPlan) -> None:
        for key in plan.evictions:
            self.loading.pop(key, None)
            self.unclaimed.discard(key)
        for key in (*plan.loads, *plan.prefetches):
            self.loading[key] = self.now + self._load_ms(key) / 1e3
        self.unclaimed.update(plan.prefetches)
        self.num_prefetched += len(plan.prefetches)
        self.unclaimed.difference_update(plan.claims)
        for key in (*plan.loads, *plan.claims):
            self._serve_load(key)
        for chunk in plan.chunks:
            if chunk.adapter in self.unclaimed:  # it was prefetched, and this is its first use
                self.unclaimed.remove(chunk.adapter)
                self._serve_load(chunk.adapter)
        for victim, by, *_ in plan.preempted:
            self.num_preempted[victim] += 1
            payer, tenant = self.tenants[by], self.tenants[victim]
            lost = range(self.computed.pop(victim, 0))
            self.again.setdefault(victim, {}).update(
                dict.fromkeys(lost, payer if payer and tenant else tenant)
            )

    def _load_ms(self, key: AdapterKey) -> float:
        return self.costs.load_ms * self.sizes[key]

    def _serve_load(self, key: AdapterKey) -> None:
        """A load is its tenant's once a request needs it, however early it began."""
        needed_by_main = any(
            r.adapter == key and self.tenants[r.key] for r in self.scheduler._requests.values()
        )
        if needed_by_main:
            self.auditor.service_ms[key.tenant] += self._load_ms(key)

    def _next_arrival(self) -> float:
        return min(self.loading.values(), default=self.now)

    def _rows_of_passes(self, plan: StepPlan, output: StepOutput) -> int:
        """What passes on arriving adapters compute; here there are none."""
        return 0

    def _audit_step(self, plan: StepPlan, step_ms: float, num_rows: int) -> None:
        for chunk in plan.chunks:
            key, num_tokens = chunk.request_id, len(chunk.token_ids)
            self.computed[key] = chunk.start + num_tokens
            used_ms = step_ms * num_tokens / num_rows
            tenant, again = self.tenants[key], self.again.get(key, {})
            for position in range(chunk.start, chunk.start + num_tokens):
                payer = again.pop(position, tenant)
                if payer != tenant:
                    used_ms -= self.costs.token_ms
                    self.again_ms[payer] += self.costs.token_ms
                    self.auditor.service_ms[payer] += self.costs.token_ms
            self.auditor.service_ms[tenant] += used_ms

    def _end_loads(self) -> None:
        for key, at in list(self.loading.items()):
            if at <= self.now + 1e-9:
                del self.loading[key]
                self.residency.finish_load(key)
