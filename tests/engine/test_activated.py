"""Adapters that act from some position of the prompt on: what they share with whom, and what they
cost."""

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine import build
from tests.engine.simulated_runner import SimulatedRunner, expected_output
from tests.engine.test_prefix_cache import SIZE, Sequences

from loraplex.adapters.residency import Residency
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.admission import AdmissionPolicy, FirstComeFirstServed
from loraplex.engine.cached_block import Namespace
from loraplex.engine.errors import RequestRefused
from loraplex.engine.plan import StepOutput
from loraplex.engine.protocol import Finished, Sampling
from loraplex.engine.scheduler import Scheduler

PROMPT = tuple(range(100, 121))
"""Five full blocks of 4 and a token."""


class World:
    """A scheduler over a simulated model, with adapters that are there."""

    def __init__(self, policy: AdmissionPolicy | None = None, **config: object) -> None:
        residency = Residency(100)
        for digest in "xy":
            residency.start_load(AdapterKey("t", digest), 1)
            residency.finish_load(AdapterKey("t", digest))
        self.config = build.config(**{"num_blocks": 40, "max_step_tokens": 32} | config)
        self.scheduler = build.scheduler(self.config, residency, policy)
        self.runner = SimulatedRunner(self.config.num_blocks, 4)
        self.num_requests = 0
        self.plans = self.runner.plans

    def run(
        self, adapter: str | None = None, start: int = 0, prompt: tuple[int, ...] = PROMPT
    ) -> Finished:
        """One request to its end, which gives what it would give alone."""
        self.num_requests += 1
        name = f"r{self.num_requests}"
        sampling = Sampling(max_tokens=3, temperature=0.0, seed=0)
        submit = build.submit(
            name, prompt=prompt, adapter=adapter, adapter_start=start, sampling=sampling
        )
        self.scheduler.add(submit, now=0.0, adapter_bytes=0 if adapter is None else 1)
        output: list[int] = []
        while True:
            plan = self.scheduler.plan(now=0.0)
            events = self.scheduler.commit(plan, self.runner.run(plan))
            self.scheduler.check()
            self.runner.poison(self.scheduler.blocks.pool.free())
            output += [token_id for tokens in events.tokens for token_id in tokens.ids]
            if events.finished:
                key = None if adapter is None else AdapterKey("t", adapter)
                assert output == expected_output(prompt, key, 3, build.EOS, start=start)
                return events.finished[0]

    def cached(
        self, adapter: str | None = None, start: int = 0, prompt: tuple[int, ...] = PROMPT
    ) -> int:
        """Prompt tokens that one more request finds."""
        return self.run(adapter, start, prompt).usage.cached_tokens


@pytest.mark.parametrize(("start", "found"), [(3, 0), (4, 4), (11, 8), (12, 12), (20, 20)])
def test_what_the_base_computed_is_found_before_the_invocation_and_not_after(
    start: int, found: int
) -> None:
    world = World()
    world.run()
    assert world.cached("x", start) == found
    assert world.cached("y", start) == found, "one adapter's blocks are found by another"
    assert world.cached("x", start) == 20


def test_what_an_adapter_computed_is_the_bases_before_the_invocation_and_not_after() -> None:
    world = World()
    world.run("x", 10)
    assert world.cached() == 8
    assert world.cached("x") == 0, "an adapter that acts everywhere finds what it did not act on"
    assert world.cached("y", 14) == 12


@pytest.mark.parametrize("start", [8, 9, 11, 12])
def test_an_invocation_elsewhere_finds_nothing_of_the_block_that_it_lies_in(start: int) -> None:
    world = World()
    world.run("x", 10)
    assert world.cached("x", start) == 8


def test_a_longer_prompt_with_the_same_invocation_finds_both_sides_of_it() -> None:
    world = World()
    first = world.run("x", 6)
    assert first.usage.cached_tokens == 0
    longer = (*PROMPT, 7, 8, 9)
    assert world.cached("x", 6, longer) == 20


@pytest.mark.parametrize("max_step_tokens", [1, 3, 5, 64])
def test_no_chunk_reaches_over_the_invocation(max_step_tokens: int) -> None:
    world = World(max_step_tokens=max_step_tokens)
    world.run("x", 10)
    chunks = [chunk for plan in world.plans for chunk in plan.prefills]
    for chunk in chunks:
        end = chunk.start + len(chunk.token_ids)
        assert end <= 10 if chunk.adapter is None else chunk.start >= 10
    assert sum(len(chunk.token_ids) for chunk in chunks) == len(PROMPT)


def test_a_step_with_room_computes_both_sides_of_an_invocation() -> None:
    world = World()
    world.run("x", 10)
    first = world.plans[0]
    assert [(chunk.start, len(chunk.token_ids)) for chunk in first.prefills] == [(0, 10), (10, 11)]
    assert first.num_requests == 1


class Charged(FirstComeFirstServed):
    """Keeps what each request is told to have used, in ms."""

    def __init__(self) -> None:
        super().__init__()
        self.ms: Counter[str] = Counter()

    def measured(self, shares_ms: Mapping[str, float]) -> None:
        self.ms.update(shares_ms)


@pytest.mark.parametrize("start", [0, 10])
def test_a_request_is_charged_the_time_of_both_sides_of_its_invocation(start: int) -> None:
    policy = Charged()
    world = World(policy)
    submit = build.submit("a", prompt=PROMPT, adapter="x", adapter_start=start)
    world.scheduler.add(submit, now=0.0, adapter_bytes=1)
    plan = world.scheduler.plan(now=0.0)
    world.scheduler.commit(plan, world.runner.run(plan), step_ms=21.0)
    world.scheduler.abort("a", now=0.0)
    assert policy.ms["a"] == pytest.approx(21.0)


def test_numbers_that_are_not_finite_take_the_bases_blocks_with_them() -> None:
    world = World()
    world.run()
    submit = build.submit("bad", prompt=PROMPT, adapter="x", adapter_start=10)
    world.scheduler.add(submit, now=0.0, adapter_bytes=1)
    plan = world.scheduler.plan(now=0.0)
    failed = world.scheduler.commit(plan, StepOutput.of(plan, {}, {"bad": "not finite"})).failed
    assert [each.code for each in failed] == ["not_finite"]
    world.scheduler.check()
    world.runner.poison(world.scheduler.blocks.pool.free())
    assert (world.cached(), world.cached("y", 10)) == (0, 8)


def test_a_base_request_that_ran_beside_such_numbers_leaves_nothing_to_find() -> None:
    world = World()
    bad = build.submit("bad", prompt=PROMPT, adapter="x", adapter_start=10)
    base = build.submit("base", prompt=PROMPT, max_tokens=9)
    for submit in (bad, base):
        world.scheduler.add(submit, now=0.0, adapter_bytes=0 if submit.adapter is None else 1)
    plan = world.scheduler.plan(now=0.0)
    output = world.runner.run(plan)
    failed = StepOutput(output.token_ids, {"bad": "not finite"})
    world.scheduler.commit(plan, failed)
    world.scheduler.abort("base", now=0.0)
    world.scheduler.take_events()
    world.scheduler.check()
    assert world.cached() == 0


@pytest.mark.parametrize(("adapter", "start"), [("x", -1), ("x", len(PROMPT)), (None, 1)])
def test_an_invocation_outside_the_prompt_or_of_nothing_is_refused(
    adapter: str | None, start: int
) -> None:
    scheduler: Scheduler = World().scheduler
    submit = build.submit("a", prompt=PROMPT, adapter=adapter, adapter_start=start)
    with pytest.raises(RequestRefused, match=f"adapter_start is {start}") as caught:
        scheduler.add(submit, now=0.0, adapter_bytes=1)
    assert caught.value.field == "adapter_start"


SEQUENCES = st.tuples(
    st.lists(st.integers(0, 1), min_size=1, max_size=9),
    st.sampled_from(["a", "b"]),
    st.sampled_from([None, "x", "y"]),
    st.integers(0, 8),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(SEQUENCES, max_size=9))
def test_blocks_are_shared_where_tokens_tenant_and_what_acted_on_each_agree_and_only_there(
    sequences: list[tuple[list[int], str, str | None, int]],
) -> None:
    world = Sequences(9 * 9)
    before: list[list[tuple[object, ...]]] = []
    for token_ids, tenant, digest, wanted in sequences:
        start = 0 if digest is None else min(wanted, len(token_ids) - 1)
        acted = [
            (token_id, tenant, None if position < start else digest)
            for position, token_id in enumerate(token_ids)
        ]
        limit = (len(token_ids) - 1) // SIZE
        expected = max((_common_blocks(acted, other) for other in before), default=0)
        namespace = Namespace(tenant, digest, start)
        assert world.run(token_ids, namespace) == min(limit, expected)
        before.append(acted)


def _common_blocks(one: list[tuple[object, ...]], other: list[tuple[object, ...]]) -> int:
    """Full blocks of both with which they begin alike."""
    common = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        common += 1
    return common // SIZE
