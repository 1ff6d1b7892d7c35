"""Several choices of one request: shared blocks, endings of their own, one bill."""

from dataclasses import replace

import pytest
from tests.engine import build
from tests.engine.simulated_runner import SimulatedRunner, expected_output

from loraplex.engine.errors import EngineOverloaded, RequestRefused
from loraplex.engine.events import Events
from loraplex.engine.plan import StepOutput
from loraplex.engine.protocol import Finished, Sampling, Submit
from loraplex.engine.scheduler import Scheduler
from loraplex.engine.seeds import choice_seed


class TokenRunner(SimulatedRunner):
    """Gives the tokens that the test names, by choice and position."""

    def __init__(self, tokens: dict[str, list[int]]) -> None:
        super().__init__(16, 4)
        self.tokens = tokens
        self.specs = {}

    def run(self, plan: object) -> StepOutput:
        super().run(plan)
        sampling = [chunk for chunk in plan.chunks if chunk.sample is not None]
        self.specs |= {chunk.request_id: chunk.sample for chunk in sampling}
        tokens = {c.request_id: self.tokens[c.request_id][c.sample.position] for c in sampling}
        return StepOutput.of(plan, tokens)


def submit(request_id: str, num_prompt_tokens: int, n: int, **sampling: object) -> Submit:
    values = {"max_tokens": 6, "seed": 3, "n": n} | sampling
    return build.submit(request_id, num_prompt_tokens, sampling=Sampling(**values))


def step(scheduler: Scheduler, runner: SimulatedRunner) -> Events:
    plan = scheduler.plan(now=0.0)
    events = scheduler.commit(plan, runner.run(plan))
    scheduler.check()
    return events


def run(scheduler: Scheduler, runner: SimulatedRunner) -> tuple[dict[int, list[int]], Finished]:
    """Outputs by choice, and the ending, of the only request."""
    outputs: dict[int, list[int]] = {}
    while scheduler.has_work:
        assert len(runner.plans) < 200, "nothing advances"
        events = step(scheduler, runner)
        for tokens in events.tokens:
            outputs.setdefault(tokens.choice, []).extend(tokens.ids)
    (finished,) = events.finished
    return outputs, finished


def test_choices_are_what_requests_with_their_seeds_would_be() -> None:
    scheduler = build.scheduler()
    asked = submit("a", 13, n=3)
    scheduler.add(asked, now=0.0)
    outputs, finished = run(scheduler, SimulatedRunner(16, 4))
    assert outputs == {
        choice: expected_output(asked.prompt, None, 6, build.EOS, choice_seed(3, choice))
        for choice in range(3)
    }
    assert len({tuple(output) for output in outputs.values()}) == 3
    assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (13, 18)


def test_the_full_blocks_of_a_prompt_are_computed_and_held_once() -> None:
    scheduler, runner = build.scheduler(), SimulatedRunner(16, 4)
    scheduler.add(submit("a", 14, n=5), now=0.0)
    step(scheduler, runner)
    assert scheduler.num_running == 5
    assert 16 - scheduler.num_free_blocks == 3 + 5
    step(scheduler, runner)
    # The prompt once, of each other choice the two tokens behind the shared blocks, two decodes.
    assert runner.num_computed == 14 + 4 * 2 + 2


def test_a_prompt_of_many_steps_is_computed_by_one_choice_and_all_begin_with_its_last_step() -> (
    None
):
    scheduler, runner = build.scheduler(), SimulatedRunner(16, 4)
    scheduler.add(submit("a", 38, n=3, max_tokens=1), now=0.0)
    step(scheduler, runner)
    assert scheduler.num_running == 1
    outputs, _ = run(scheduler, runner)
    assert outputs.keys() == {0, 1, 2}
    assert runner.num_computed == 38 + 2 * 2
    assert [len(plan.chunks) for plan in runner.plans] == [1, 1, 3]


def test_choices_take_hold_of_the_prompt_in_a_step_that_has_no_room_for_them() -> None:
    scheduler, runner = build.scheduler(), SimulatedRunner(16, 4)
    scheduler.add(submit("a", 16, n=5, max_tokens=1), now=0.0)
    outputs, _ = run(scheduler, runner)
    assert outputs.keys() == {0, 1, 2, 3, 4}
    assert [len(plan.chunks) for plan in runner.plans] == [1, 4]
    assert runner.num_computed == 16 + 4 * 4


def test_without_a_cache_a_choice_that_finds_no_other_computes_the_prompt_itself() -> None:
    scheduler = build.scheduler(build.config(max_running=1, prefix_cache=False))
    runner = SimulatedRunner(16, 4)
    asked = submit("a", 9, n=2, max_tokens=2)
    scheduler.add(asked, now=0.0)
    outputs, _ = run(scheduler, runner)
    assert outputs == {
        choice: expected_output(asked.prompt, None, 2, build.EOS, choice_seed(3, choice))
        for choice in range(2)
    }
    assert runner.num_computed == 2 * (9 + 1)


def test_a_prompt_that_fills_its_blocks_leaves_each_choice_a_token_to_compute() -> None:
    scheduler, runner = build.scheduler(), SimulatedRunner(16, 4)
    scheduler.add(submit("a", 8, n=2, max_tokens=1), now=0.0)
    outputs, _ = run(scheduler, runner)
    assert outputs.keys() == {0, 1}
    assert runner.num_computed == 8 + 4


def test_choices_go_on_when_the_one_that_computed_their_prompt_ends_at_once() -> None:
    scheduler = build.scheduler()
    scheduler.add(submit("a", 9, n=3, max_tokens=2), now=0.0)
    runner = TokenRunner({"a": [build.EOS], "a#1": [1, 2], "a#2": [3, build.EOS]})
    outputs, finished = run(scheduler, runner)
    assert outputs == {0: [build.EOS], 1: [1, 2], 2: [3, build.EOS]}
    assert (finished.reason, finished.usage.completion_tokens) == ("length", 5)
    assert runner.num_computed == 9 + 2 + 2 * 1
    assert scheduler.num_free_blocks == 16


def test_each_choice_says_why_it_ended_and_the_request_ends_with_the_last() -> None:
    scheduler = build.scheduler()
    scheduler.add(submit("a", 3, n=2, max_tokens=2), now=0.0)
    runner = TokenRunner({"a": [build.EOS], "a#1": [1, build.EOS]})
    first, second = step(scheduler, runner), step(scheduler, runner)
    assert [(t.choice, t.finish_reason) for t in first.tokens] == [(0, "stop"), (1, None)]
    assert first.finished == []
    assert [(t.choice, t.finish_reason) for t in second.tokens] == [(1, "stop")]
    assert [f.reason for f in second.finished] == ["stop"]


def test_an_abort_ends_all_choices_with_one_bill() -> None:
    scheduler, runner = build.scheduler(build.config(max_running=2)), SimulatedRunner(16, 4)
    scheduler.add(submit("a", 10, n=4), now=0.0)
    step(scheduler, runner)
    step(scheduler, runner)
    scheduler.abort("a", now=0.0)
    scheduler.check()
    (finished,) = scheduler.take_events().finished
    assert (finished.reason, finished.usage.completion_tokens) == ("abort", 4)
    assert (scheduler.num_free_blocks, scheduler.has_work) == (16, False)


def test_a_choice_that_fails_fails_its_request_and_no_other() -> None:
    scheduler, runner = build.scheduler(), SimulatedRunner(16, 4)
    scheduler.add(submit("a", 3, n=2), now=0.0)
    scheduler.add(submit("b", 3, n=2), now=0.0)
    plan = scheduler.plan(now=0.0)
    output = replace(runner.run(plan), failures={"a#1": "not finite"})
    events = scheduler.commit(plan, output)
    scheduler.check()
    assert [failed.request_id for failed in events.failed] == ["a"]
    assert scheduler.num_running == 2


def test_a_preempted_choice_shares_the_prompt_again_and_gives_the_same() -> None:
    scheduler = build.scheduler(build.config(num_blocks=12))
    asked = submit("a", 9, n=4, max_tokens=20, repetition_penalty=1.5)
    scheduler.add(asked, now=0.0)
    runner = SimulatedRunner(12, 4)  # asserts that penalties know prompt and output
    outputs, _ = run(scheduler, runner)
    assert sum(plan.num_preempted for plan in runner.plans) > 0
    assert outputs == {
        choice: expected_output(asked.prompt, None, 20, build.EOS, choice_seed(3, choice))
        for choice in range(4)
    }


def test_more_choices_than_the_queue_holds_are_refused_and_a_full_queue_counts_them() -> None:
    scheduler = build.scheduler(build.config(max_waiting_requests=4))
    with pytest.raises(RequestRefused) as refused:
        scheduler.add(submit("a", 3, n=5), now=0.0)
    assert refused.value.field == "n"
    scheduler.add(submit("b", 3, n=3), now=0.0)
    with pytest.raises(EngineOverloaded):
        scheduler.add(submit("c", 3, n=2), now=0.0)


def test_a_request_cannot_take_the_name_of_anothers_choice() -> None:
    scheduler = build.scheduler()
    scheduler.add(submit("a", 3, n=2), now=0.0)
    with pytest.raises(RequestRefused, match="open already"):
        scheduler.add(submit("a#1", 3, n=1), now=0.0)


@pytest.mark.parametrize(
    ("sampling", "output"),
    [
        ({}, [build.EOS]),
        ({"ignore_eos": True}, [build.EOS, 5, 6, 7, build.EOS, 8]),
        ({"stop_token_ids": (6,), "ignore_eos": True}, [build.EOS, 5, 6]),
        ({"min_tokens": 2}, [build.EOS, 5, 6, 7, build.EOS]),
        ({"min_tokens": 2, "stop_token_ids": (6,)}, [build.EOS, 5, 6]),
        ({"min_tokens": 3, "stop_token_ids": (6,)}, [build.EOS, 5, 6, 7, build.EOS]),
    ],
)
def test_which_tokens_end_a_request(sampling: dict[str, object], output: list[int]) -> None:
    scheduler = build.scheduler()
    scheduler.add(submit("a", 3, n=1, **sampling), now=0.0)
    outputs, _ = run(scheduler, TokenRunner({"a": [build.EOS, 5, 6, 7, build.EOS, 8]}))
    assert outputs[0] == output


def test_tokens_that_end_a_request_are_forbidden_before_min_tokens() -> None:
    scheduler = build.scheduler()
    scheduler.add(submit("a", 3, n=1, min_tokens=2, stop_token_ids=(6,)), now=0.0)
    runner = TokenRunner({"a": [1, 2, 3, 4, 5, 7]})
    forbidden = []
    for _ in range(4):
        step(scheduler, runner)
        forbidden.append(set(runner.specs["a"].forbidden_ids))
    assert forbidden == [{6, build.EOS}, {6, build.EOS}, set(), set()]


def test_the_text_of_tokens_that_end_a_request_is_not_returned() -> None:
    scheduler = build.scheduler()
    scheduler.add(submit("a", 3, n=1, stop_token_ids=(6,)), now=0.0)
    runner = TokenRunner({"a": [5, 6]})
    texts = [t.text for _ in range(2) for t in step(scheduler, runner).tokens]
    assert texts == ["5 ", ""]
