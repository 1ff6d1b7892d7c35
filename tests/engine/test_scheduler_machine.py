"""Whatever happens in whatever order, each request gives what it would give alone."""

from collections.abc import Callable, Mapping
from typing import ClassVar

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.engine import build
from tests.engine.linear_costs import LinearCosts
from tests.engine.simulated_runner import SimulatedRunner, expected_output

from loraplex.adapters.residency import Residency
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.events import Events
from loraplex.engine.plan import Chunk, SampleSpec, StepPlan
from loraplex.engine.protocol import Sampling
from loraplex.engine.seeds import choice_seed


class GreedyRunner(SimulatedRunner):
    """Draws the same token for all that have the same before it."""

    def _sample(self, chunk: Chunk, spec: SampleSpec) -> int:
        return super()._sample(chunk, msgspec.structs.replace(spec, seed=0))


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, aborts, loads and steps in any order, with too little memory for all of them.

    The simulated runner's output depends on every position behind a token, so each request that
    ends by itself must give exactly what it would give alone.
    """

    num_host_blocks = 0
    is_greedy = False
    adapter_bytes = 5
    border: ClassVar[Mapping[str, int]] = {}
    cold: ClassVar[Mapping[str, object]] = {}
    step_ms = 0.0
    num_learned_steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.residency = Residency(self.adapter_bytes)
        config = build.config(
            max_waiting_requests=1000,
            max_waiting_tokens=100_000,
            num_host_blocks=self.num_host_blocks,
            copy_ms_per_block=0.5,  # a token takes 1 ms
            **({"num_blocks": 12} | self.border | self.cold),
        )
        costs = LinearCosts(num_steps=self.num_learned_steps)
        self.scheduler = build.scheduler(config, self.residency, costs=costs)
        self.runner = (GreedyRunner if self.is_greedy else SimulatedRunner)(config.num_blocks, 4)
        self.loading: list[AdapterKey] = []
        self.submits: dict[str, object] = {}
        self.outputs: dict[str, dict[int, list[int]]] = {}
        self.ended_choices: set[tuple[str, int]] = set()
        self.ended: dict[str, str] = {}
        self.computed: dict[str, int] = {}
        """Prompt tokens, of the choice that came furthest."""
        self.aborted: set[str] = set()
        self.num_added = 0

    @rule(
        num_prompt_tokens=st.integers(1, 30),
        max_tokens=st.integers(1, 18),
        adapter=st.sampled_from([None, "x", "y", "z"]),
        n=st.sampled_from([1, 1, 2, 5]),
        penalty=st.sampled_from([1.0, 1.2]),
        num_alike=st.integers(0, 30),
        act_from=st.one_of(st.just(0), st.integers(0, 29)),
    )
    def add(
        self,
        num_prompt_tokens: int,
        max_tokens: int,
        adapter: str | None,
        n: int,
        penalty: float,
        num_alike: int,
        act_from: int,
    ) -> None:
        """The first `num_alike` tokens of the prompt are those of other prompts too; an adapter
        acts from about `act_from` on."""
        self.num_added += 1
        sampling = Sampling(max_tokens=max_tokens, n=n, seed=1, repetition_penalty=penalty)
        own = range(100 * self.num_added, 100 * self.num_added + num_prompt_tokens)
        prompt = tuple(i if i < num_alike else own[i] % 500 for i in range(num_prompt_tokens))
        submit = build.submit(
            f"r{self.num_added}",
            adapter=adapter,
            sampling=sampling,
            prompt=prompt,
            adapter_start=0 if adapter is None else min(act_from, num_prompt_tokens - 1),
        )
        self.scheduler.add(submit, now=self.now, adapter_bytes=0 if adapter is None else 2)
        self.submits[submit.request_id] = submit

    @precondition(lambda self: self.submits)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.submits)))
        if request_id not in self.ended:
            self.aborted.add(request_id)
        self.scheduler.abort(request_id, now=self.now)

    @rule(data=st.data())
    def fail_step(self, data: st.DataObject) -> None:
        """A step writes some of its keys and values, and breaks."""
        plan = self.plan()
        if data.draw(st.booleans()):
            self.runner.copy(plan)
            for chunk in plan.chunks[: data.draw(st.integers(0, 8))]:
                self.runner.write(chunk)
        self.runner.poison(self.scheduler.blocks.pool.free())
        self.scheduler.fail_step(plan, "broken")
        self.take(self.scheduler.take_events())

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), works=st.booleans())
    def end_load(self, data: st.DataObject, works: bool) -> None:
        self.end(data.draw(st.sampled_from(self.loading)), works=works)

    def end(self, key: AdapterKey, *, works: bool) -> None:
        self.loading.remove(key)
        if works:
            self.residency.finish_load(key)
        else:
            self.residency.fail_load(key)
            self.scheduler.fail_adapter(key, "adapter_load_failed", "unreadable")

    @rule(num_prompt_tokens=st.integers(1, 30), adapter=st.sampled_from([None, "x", "y", "z"]))
    def step_while_another_comes(self, num_prompt_tokens: int, adapter: str | None) -> None:
        self.step(lambda: self.add(num_prompt_tokens, 5, adapter, 1, 1.0, 0, 0))

    @rule(meanwhile=st.just(lambda: None))
    def step(self, meanwhile: Callable[[], None]) -> None:
        """`meanwhile` is called after the step was planned, before it ends."""
        plan = self.plan()
        assert plan.num_tokens <= 16
        for key in (chunk.adapter for chunk in plan.chunks):
            assert key is None or key not in self.loading
        self.runner.copy(plan)
        meanwhile()
        output = self.runner.run(plan)
        done = (c.chunk for c in plan.cold if output.cold[c.chunk.request_id].is_done)
        for chunk in (*plan.chunks, *done):
            request_id = chunk.request_id.partition("#")[0]
            end = min(chunk.start + len(chunk.token_ids), len(self.submits[request_id].prompt))
            self.computed[request_id] = max(end, self.computed.get(request_id, 0))
        self.now += self.step_ms / 1e3
        self.take(self.scheduler.commit(plan, output, self.step_ms))
        self.runner.poison(self.scheduler.blocks.pool.free())

    def plan(self) -> StepPlan:
        plan = self.scheduler.plan(now=self.now)
        self.loading = [key for key in self.loading if key not in plan.evictions]
        self.loading += [*plan.loads, *plan.prefetches]
        return plan

    def take(self, events: Events) -> None:
        for tokens in events.tokens:
            choices = self.outputs.setdefault(tokens.request_id, {})
            output = choices.setdefault(tokens.choice, [])
            assert tokens.sequence == len(output), "a token is repeated or lost"
            assert (tokens.request_id, tokens.choice) not in self.ended_choices
            output.extend(tokens.ids)
            if tokens.finish_reason is not None:
                self.ended_choices.add((tokens.request_id, tokens.choice))
        for ending, reason in (
            *((f, f.reason) for f in events.finished),
            *((f, "failed") for f in events.failed),
        ):
            assert ending.request_id not in self.ended, "a request ended twice"
            self.ended[ending.request_id] = reason
            choices = self.outputs.get(ending.request_id, {})
            assert ending.usage.completion_tokens == sum(map(len, choices.values()))
            assert ending.usage.prompt_tokens == self.computed.get(ending.request_id, 0)
            assert 0 <= ending.usage.cached_tokens <= ending.usage.prompt_tokens
            if reason in {"stop", "length"}:
                assert ending.usage.prompt_tokens == len(self.submits[ending.request_id].prompt)

    @invariant()
    def conserves(self) -> None:
        self.scheduler.check()

    def teardown(self) -> None:
        for _ in range(2000):
            if not self.scheduler.has_work:
                break
            for key in list(self.loading):
                self.end(key, works=True)
            self.step(lambda: None)
        assert not self.scheduler.has_work, "somebody starves"
        self.scheduler.check()
        assert self.ended.keys() == self.submits.keys()
        for request_id, submit in self.submits.items():
            if self.ended[request_id] in {"stop", "length"}:
                adapter = submit.adapter and AdapterKey("t", submit.adapter)
                for choice in range(submit.sampling.n):
                    expected = expected_output(
                        submit.prompt,
                        adapter,
                        submit.sampling.max_tokens,
                        build.EOS,
                        0 if self.is_greedy else choice_seed(1, choice),
                        submit.adapter_start,
                    )
                    assert self.outputs[request_id][choice] == expected
                    assert (request_id, choice) in self.ended_choices


class SwappingMachine(SchedulerMachine):
    """The same with room on the host for what some of those that are preempted had computed."""

    num_host_blocks = 7


class GreedyMachine(SchedulerMachine):
    """The same with choices and requests that begin alike and go on alike."""

    is_greedy = True


class GreedySwappingMachine(GreedyMachine):
    """Both."""

    num_host_blocks = 7


class LendingMachine(GreedySwappingMachine):
    """The same with four blocks that adapters may have: room for two more of them."""

    adapter_bytes = 2
    border: ClassVar[Mapping[str, int]] = {
        "num_blocks": 16,
        "min_blocks": 12,
        "lent_block_bytes": 1,
    }


MACHINES = (
    SchedulerMachine,
    SwappingMachine,
    GreedyMachine,
    GreedySwappingMachine,
    LendingMachine,
)
for machine in MACHINES:
    machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase
TestSwappingMachine = SwappingMachine.TestCase
TestGreedyMachine = GreedyMachine.TestCase
TestGreedySwappingMachine = GreedySwappingMachine.TestCase
TestLendingMachine = LendingMachine.TestCase
