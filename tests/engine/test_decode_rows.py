"""Rows of those that decode: kept from step to step, handed out as values."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine import build
from tests.engine.simulated_runner import SimulatedRunner

from loraplex.adapters.residency import Residency
from loraplex.engine.plan import Chunk, Decodes, StepOutput, StepPlan
from loraplex.engine.protocol import Sampling, Submit
from loraplex.engine.scheduler import Scheduler


def arrays_of(decodes: Decodes) -> list[np.ndarray]:
    roster = decodes.roster
    of_roster = [roster.starts, roster.num_prompt_tokens, roster.sampling]
    return [decodes.token_ids, decodes.positions, decodes.block_tables, *of_roster]


class Steps:
    """A scheduler, a runner, and every plan with what it said when it was made."""

    def __init__(self, **config: object) -> None:
        self.residency = Residency(100)
        values = {"num_blocks": 12, "max_running": 6} | config
        self.scheduler = build.scheduler(build.config(**values), self.residency)
        self.runner = SimulatedRunner(values["num_blocks"], 4)
        self.plans: list[tuple[StepPlan, tuple[Chunk, ...]]] = []

    def add(self, name: str, num_tokens: int = 3, **changes: object) -> None:
        self.scheduler.add(build.submit(name, num_tokens, **changes), 0.0, adapter_bytes=1)

    def step(self, aborted: Sequence[str] = ()) -> StepPlan:
        """A step, between plan and commit of which clients leave."""
        plan = self.scheduler.plan(0.0)
        self.plans.append((plan, plan.chunks))
        output = self.runner.run(plan)
        for name in aborted:
            self.scheduler.abort(name, 0.0)
        self.events = self.scheduler.commit(plan, output)
        for key in plan.loads:
            self.residency.finish_load(key)
        self.scheduler.check()
        return plan


REQUESTS = st.tuples(st.integers(1, 9), st.integers(1, 12), st.sampled_from([None, "x", "y", "z"]))


@given(st.lists(st.lists(REQUESTS, max_size=3), max_size=12))
@settings(deadline=None, max_examples=60)
def test_no_later_step_changes_a_plan(arrivals: list[list[tuple[int, int, str | None]]]) -> None:
    steps = Steps()
    for number, requests in enumerate([*arrivals, [], [], [], []]):
        for index, (num_tokens, max_tokens, adapter) in enumerate(requests):
            steps.add(f"{number}.{index}", num_tokens, max_tokens=max_tokens, adapter=adapter)
        steps.step()
    for plan, chunks in steps.plans:
        assert plan.chunks == chunks
        assert not any(array.flags.writeable for array in arrays_of(plan.decodes))


def test_no_plan_shares_memory_with_the_rows_it_was_made_from() -> None:
    steps = Steps()
    for name in "abc":
        steps.add(name)
    steps.step()
    plan = steps.step()
    rows = vars(steps.scheduler._decoding).values()
    kept = [value for value in rows if isinstance(value, np.ndarray)]
    assert len(plan.decodes) == 3
    assert not any(np.shares_memory(a, b) for a in arrays_of(plan.decodes) for b in kept)


def test_as_long_as_the_same_choices_decode_their_roster_is_the_same_object() -> None:
    steps = Steps()
    steps.add("a", max_tokens=5)
    steps.step()
    first, second = steps.step(), steps.step()
    steps.add("b")
    with_prompt, both = steps.step(), steps.step()
    assert first.decodes.roster is second.decodes.roster is with_prompt.decodes.roster
    assert both.decodes.roster.keys == ("a", "b")


def test_rows_of_one_adapter_are_together_and_those_of_the_base_model_first() -> None:
    steps = Steps(num_blocks=16)
    for name, adapter in zip("abcdef", ("y", None, "x", "y", None, "x"), strict=True):
        steps.add(name, adapter=adapter, max_tokens=9)
    for _ in range(3):
        plan = steps.step()
    roster = plan.decodes.roster
    assert [key and key.digest for key in roster.adapters] == [None, "y", "x"]
    assert (roster.keys, roster.lengths.tolist()) == (("b", "e", "a", "d", "c", "f"), [2, 2, 2])


def test_of_too_many_for_a_step_the_first_admitted_decode() -> None:
    steps = Steps()
    for name, adapter in (("a", "y"), ("b", "x"), ("c", None)):
        steps.add(name, adapter=adapter, max_tokens=9)
    for _ in range(3):
        steps.step()
    selected = steps.scheduler._decoding.select(2, yielding=False)
    assert {request.key for request in selected.requests} == {"c", "a"}  # the others wait for loads


@pytest.mark.parametrize("left", ["a", "b", "c"])
def test_who_leaves_during_a_step_gets_nothing_and_the_others_get_theirs(left: str) -> None:
    steps = Steps()
    for name in "abc":
        steps.add(name, max_tokens=6)
    steps.step()
    steps.step(aborted=[left])
    others = {"a", "b", "c"} - {left}
    assert {tokens.request_id for tokens in steps.events.tokens} == others
    plan = steps.step()
    assert set(plan.decodes.roster.keys) == others
    assert plan.decodes.draws.tolist() == [2, 2]


def test_a_step_does_not_advance_who_has_taken_a_row_since() -> None:
    steps = Steps()
    steps.add("a", max_tokens=6)
    steps.step()
    rows, request = steps.scheduler._decoding, steps.scheduler._requests["a"]
    before = rows.select(8, yielding=False)
    rows.leave(request)
    rows.join(request, yields=False)
    assert rows.advance(before, np.array([5])).tolist() == [True]
    rows.check([request])


def test_a_row_that_was_left_is_taken_by_another_without_a_trace() -> None:
    def outputs(*names: str) -> dict[str, list[int]]:
        scheduler, runner = build.scheduler(build.config(max_running=1)), SimulatedRunner(16, 4)
        for name in names:
            scheduler.add(submit_with_stop(name), 0.0)
        found: dict[str, list[int]] = {}
        while scheduler.has_work:
            for tokens in take_step(scheduler, runner):
                found.setdefault(tokens[0], []).append(tokens[1])
        return found

    assert outputs("long", "b")["b"] == outputs("b")["b"]


OPTIONS = {
    "max_tokens": 7,
    "n": 2,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "logit_bias": ((3, 1.0),),
    "seed": -1,
    "stop": ("7",),
    "stop_token_ids": (998,),
    "ignore_eos": True,
    "min_tokens": 5,
    "top_logprobs": 2,
}


def test_every_option_of_sampling_is_tried() -> None:
    assert OPTIONS.keys() == set(Sampling.__struct_fields__)


@pytest.mark.parametrize("option", OPTIONS)
def test_a_choice_that_decodes_is_drawn_as_its_request_says(option: str) -> None:
    scheduler = build.scheduler()
    asked = {"max_tokens": 6, "seed": 0, option: OPTIONS[option]}
    scheduler.add(build.submit("plain"), 0.0)
    scheduler.add(build.submit("asks", sampling=Sampling(**asked)), 0.0)
    plan = scheduler.plan(0.0)
    scheduler.commit(plan, StepOutput.of(plan, {}))
    plan, requests = scheduler.plan(0.0), scheduler._requests
    assert {chunk.request_id for chunk in plan.chunks} == requests.keys()
    for chunk in plan.chunks:
        assert chunk.sample == requests[chunk.request_id].sample_spec()


def submit_with_stop(name: str) -> Submit:
    """One with ends of its own, and a prompt of several blocks if it is long."""
    sampling = Sampling(max_tokens=7, temperature=0.0, seed=0, stop_token_ids=(len(name),))
    return build.submit(name, 20 if name == "long" else 2, sampling=sampling)


def take_step(scheduler: Scheduler, runner: SimulatedRunner) -> list[tuple[str, int]]:
    plan = scheduler.plan(0.0)
    events = scheduler.commit(plan, runner.run(plan))
    scheduler.check()
    return [(tokens.request_id, tokens.ids[0]) for tokens in events.tokens]
