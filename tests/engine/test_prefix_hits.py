"""What requests find in the prefix cache, what they are charged and billed for it."""

import pytest
from tests.engine import build
from tests.engine.fair_world import SETTINGS
from tests.engine.linear_costs import LinearCosts
from tests.engine.simulated_runner import SimulatedRunner, expected_output

from loraplex.adapters.residency import Residency
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.events import Events
from loraplex.engine.fair_admission import FairAdmission
from loraplex.engine.plan import StepOutput
from loraplex.engine.protocol import Finished, Sampling, Submit
from loraplex.engine.scheduler import Scheduler

PROMPT = tuple(range(13))
"""Three full blocks and a token."""


class World:
    """A scheduler over a simulated model, in which freed blocks become unreadable at once."""

    def __init__(self, scheduler: Scheduler | None = None, **config: object) -> None:
        values = {"num_blocks": 32} | config
        self.config = build.config(**values)
        self.scheduler = scheduler or build.scheduler(self.config)
        self.runner = SimulatedRunner(self.config.num_blocks, 4)

    def step(self) -> Events:
        plan = self.scheduler.plan(now=0.0)
        events = self.scheduler.commit(plan, self.runner.run(plan))
        self.scheduler.check()
        self.runner.poison(self.scheduler.blocks.pool.free())
        return events

    def run(self, request: Submit, adapter_bytes: int = 0) -> tuple[list[int], Finished]:
        self.scheduler.add(request, now=0.0, adapter_bytes=adapter_bytes)
        output: list[int] = []
        while True:
            events = self.step()
            output += [
                i for t in events.tokens if t.request_id == request.request_id for i in t.ids
            ]
            for finished in events.finished:
                if finished.request_id == request.request_id:
                    return output, finished


def submit(request_id: str, prompt: tuple[int, ...] = PROMPT, **changes: object) -> Submit:
    sampling = {"max_tokens": 3, "temperature": 0.0, "seed": 0}
    sampling |= {name: changes.pop(name) for name in ("n", "max_tokens") if name in changes}
    return build.submit(request_id, prompt=prompt, sampling=Sampling(**sampling), **changes)


def cached(finished: Finished) -> int:
    return finished.usage.cached_tokens


def test_a_prompt_that_was_computed_before_costs_its_last_block_and_gives_the_same() -> None:
    world = World()
    first, cold = world.run(submit("a"))
    num_computed = world.runner.num_computed
    second, warm = world.run(submit("b"))
    assert first == second == expected_output(PROMPT, None, 3, build.EOS)
    assert world.runner.num_computed - num_computed == 1 + 2
    assert (cached(cold), cached(warm)) == (0, 12)
    assert warm.usage.prompt_tokens == 13


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    world = World()
    world.run(submit("a", tuple(range(12))))
    assert cached(world.run(submit("b", tuple(range(12))))[1]) == 8


def test_a_conversation_finds_its_earlier_turns_with_the_answers_in_them() -> None:
    world = World()
    answer, _ = world.run(submit("a", max_tokens=8))
    turn = (*PROMPT, *answer, 400, 401)
    second, finished = world.run(submit("b", turn))
    # The answer's last token was drawn, but not computed: 20 of 21 are in full blocks.
    assert cached(finished) == 20
    assert second == expected_output(turn, None, 3, build.EOS)


@pytest.mark.parametrize(
    "changes",
    [
        {"tenant": "other"},
        {"adapter": "x"},
        {"tenant": "tx", "adapter": ""},
        {"prompt": (9, *PROMPT[1:])},
    ],
)
def test_nobody_finds_what_another_tenant_adapter_or_prompt_left(changes: dict[str, str]) -> None:
    residency = Residency(100)
    world = World(build.scheduler(build.config(num_blocks=32), residency))
    world.run(submit("a"))
    world.run(submit("b", tenant="t"))
    request = submit("c", **changes)
    if request.adapter is not None:
        key = AdapterKey(request.tenant, request.adapter)
        residency.start_load(key, 1)
        residency.finish_load(key)
    _, finished = world.run(request, 0 if request.adapter is None else 1)
    assert cached(finished) == 0


def test_an_adapter_that_was_replaced_under_its_name_finds_nothing_of_the_old_one() -> None:
    residency = Residency(100)
    world = World(build.scheduler(build.config(num_blocks=32), residency))
    found = []
    for request_id, digest in [("a", "v1"), ("b", "v2"), ("c", "v1"), ("d", "v2")]:
        key = AdapterKey("t", digest)
        if request_id in "ab":
            residency.start_load(key, 1)
            residency.finish_load(key)
        output, finished = world.run(submit(request_id, adapter=digest), adapter_bytes=1)
        assert output == expected_output(PROMPT, key, 3, build.EOS)
        found.append(cached(finished))
    assert found == [0, 0, 12, 12]


def test_what_was_computed_before_an_abort_is_found_and_no_more() -> None:
    world = World()
    long = tuple(range(40))
    world.scheduler.add(submit("a", long), now=0.0)
    world.step()
    world.scheduler.abort("a", now=0.0)
    output, finished = world.run(submit("b", long))
    assert cached(finished) == 16
    assert output == expected_output(long, None, 3, build.EOS)


def test_a_step_that_failed_leaves_nothing_to_find() -> None:
    world = World()
    long = tuple(range(40))
    world.scheduler.add(submit("a", long), now=0.0)
    world.step()
    world.scheduler.fail_step(world.scheduler.plan(now=0.0), "broken")
    world.runner.poison(world.scheduler.blocks.pool.free())
    output, finished = world.run(submit("b", long))
    assert cached(finished) == 16
    assert output == expected_output(long, None, 3, build.EOS)


def test_numbers_that_are_not_finite_are_forgotten_with_all_that_they_may_come_from() -> None:
    world = World()
    world.run(submit("a"))
    world.run(submit("b", tenant="other"))
    world.scheduler.add(submit("c", (*PROMPT, 7, 8, 9, 10)), now=0.0)
    plan = world.scheduler.plan(now=0.0)
    world.scheduler.commit(plan, StepOutput.of(plan, {}, {"c": "not finite"}))
    world.scheduler.check()
    assert cached(world.run(submit("d"))[1]) == 0
    assert cached(world.run(submit("e", tenant="other"))[1]) == 12


def fail_for_numbers(world: World, request_id: str) -> None:
    """A step in which all compute, and what one has got is not finite."""
    plan = world.scheduler.plan(now=0.0)
    failures = {request_id: "not finite"}
    world.scheduler.commit(plan, StepOutput(world.runner.run(plan).token_ids, failures))
    world.scheduler.check()


def test_what_has_been_forgotten_is_not_known_again_by_those_that_still_run_on_it() -> None:
    world = World(num_blocks=40, max_step_tokens=12)
    world.run(submit("poison"))
    world.scheduler.add(submit("a", (*PROMPT, 7)), now=0.0)
    world.scheduler.add(submit("b", (*PROMPT, *range(100, 130)), n=2), now=0.0)
    fail_for_numbers(world, "a")
    while world.scheduler.has_work:  # "b" had not computed all of its prompt
        world.step()
    assert cached(world.run(submit("c"))[1]) == 0


def test_what_was_read_is_not_copied_back_from_the_host_once_it_has_been_forgotten() -> None:
    world = World(num_blocks=12, num_host_blocks=16, copy_ms_per_block=0.1)
    for name, start in (("a", 0), ("b", 100)):
        prompt = tuple(range(start, start + 20))
        world.scheduler.add(submit(name, prompt, max_tokens=20), now=0.0)
    while world.scheduler.blocks.swapping.num_free_blocks == 16:
        world.step()
    fail_for_numbers(world, "a")
    assert world.scheduler.blocks.swapping.num_free_blocks == 16
    num_computed = world.runner.num_computed
    while world.scheduler.has_work:
        world.step()
    assert world.runner.num_computed - num_computed == 20 + 19  # "b", from its first token on


def test_a_preempted_request_finds_itself_again_and_does_not_say_so() -> None:
    world = World(num_blocks=12)
    for name in "ab":
        world.scheduler.add(
            build.submit(name, 20, max_tokens=20, prompt=tuple(range(ord(name), ord(name) + 20))),
            now=0.0,
        )
    finished, outputs = [], {"a": [], "b": []}
    while world.scheduler.has_work:
        events = world.step()
        finished += events.finished
        for tokens in events.tokens:
            outputs[tokens.request_id] += tokens.ids
    assert any(plan.num_preempted for plan in world.runner.plans)
    assert world.runner.num_computed < 2 * (20 + 19) + 20
    assert [cached(each) for each in finished] == [0, 0]
    for name in "ab":
        prompt = tuple(range(ord(name), ord(name) + 20))
        assert outputs[name] == expected_output(prompt, None, 20, build.EOS)


def test_a_request_that_is_aborted_before_it_ran_has_found_nothing() -> None:
    world = World()
    world.run(submit("a"))
    world.scheduler.add(submit("b"), now=0.0)
    world.scheduler.plan(now=0.0)
    world.scheduler.abort("b", now=0.0)
    (finished,) = world.scheduler.take_events().finished
    assert (finished.usage.prompt_tokens, finished.usage.cached_tokens) == (0, 0)


def test_choices_find_a_prompt_once_and_share_it() -> None:
    world = World()
    world.run(submit("a"))
    num_computed = world.runner.num_computed
    _, finished = world.run(submit("b", n=3, max_tokens=1))
    assert (finished.usage.prompt_tokens, cached(finished)) == (13, 12)
    assert world.runner.num_computed - num_computed == 3


def test_choices_that_share_a_block_which_another_request_has_computed_too_hold_that_one() -> None:
    world = World(max_step_tokens=26)
    world.scheduler.add(submit("a", max_tokens=9), now=0.0)
    world.scheduler.add(submit("b", n=3, max_tokens=1), now=0.0)
    for _ in range(3):
        world.step()
    # Of the prompt three blocks, though two requests computed them; of "a" one more.
    assert 32 - world.scheduler.num_free_blocks == 3 + 1


def test_choices_hold_what_they_share_with_each_other_and_with_another_request_as_one_path() -> (
    None
):
    world = World(max_step_tokens=26)
    world.scheduler.add(submit("a", (*PROMPT[:8], 90, 91, 92, 93, 94), max_tokens=1), now=0.0)
    world.scheduler.add(submit("b", n=3, max_tokens=1), now=0.0)
    world.step()  # both first requests end in it, the other choices have not begun to compute
    assert world.scheduler.num_running == 2
    world.step()
    assert not world.scheduler.has_work


def test_two_that_generate_the_same_hold_it_once() -> None:
    world = World()
    for name in "ab":
        world.scheduler.add(submit(name, max_tokens=12), now=0.0)
    for _ in range(9):
        world.step()  # which checks the tables of those that decode
    # Of 13 + 8 computed tokens five full blocks, and one each for what follows.
    assert 32 - world.scheduler.num_free_blocks == 5 + 2


def test_what_choices_share_in_a_step_that_fails_was_never_computed() -> None:
    world = World(max_step_tokens=13)
    world.scheduler.add(submit("a", n=2), now=0.0)
    plan = world.scheduler.plan(now=0.0)
    assert world.scheduler.num_running == 2
    world.scheduler.fail_step(plan, "broken")
    world.scheduler.check()
    assert cached(world.run(submit("b"))[1]) == 0


def test_a_request_that_finds_its_prompt_fits_where_it_would_not_else() -> None:
    world = World(num_blocks=12)
    world.scheduler.add(submit("a", tuple(range(33)), max_tokens=12), now=0.0)
    for _ in range(4):
        world.step()
    world.scheduler.add(submit("b", (*range(32), 99)), now=0.0)
    world.step()
    assert world.scheduler.num_running == 2


def test_without_a_cache_nothing_is_found() -> None:
    world = World(prefix_cache=False)
    world.run(submit("a"))
    assert cached(world.run(submit("b"))[1]) == 0
    assert world.scheduler.blocks.pool.num_cached == 0


def test_what_is_found_is_not_charged() -> None:
    policy = FairAdmission(SETTINGS)
    costs = LinearCosts(token_ms=1.0)
    world = World(build.scheduler(build.config(num_blocks=32), policy=policy, costs=costs))
    charges = []
    charge = policy.main.share.charge

    def note(key: str, tenant: str, predicted_ms: float) -> None:
        charges.append(predicted_ms)
        charge(key, tenant, predicted_ms)

    policy.main.share.charge = note
    for request_id in "ab":
        world.run(submit(request_id))
    assert charges == [13 + 2, 1 + 2]


def test_of_those_whose_turn_it_is_the_one_with_the_longest_cached_prefix_goes_first() -> None:
    policy = FairAdmission(SETTINGS)
    config = build.config(num_blocks=32, max_running=1)
    world = World(build.scheduler(config, policy=policy))
    world.run(submit("warm", tenant="c"))
    for tenant in "abc":
        world.scheduler.add(submit(tenant, tenant=tenant), now=0.0)
    assert [chunk.request_id for chunk in world.scheduler.plan(now=0.0).chunks] == ["c"]


def test_a_forecast_of_the_pool_counts_cached_blocks_that_will_be_held() -> None:
    world = World(num_blocks=13, kv_forecast=True)
    world.run(submit("a", tuple(range(30)), max_tokens=1))
    world.scheduler.add(submit("b", tuple(range(100, 116)), max_tokens=6), now=0.0)
    world.step()
    # It needs 8 blocks, of which 7 are cached and held by nobody, and then 3 more.
    world.scheduler.add(submit("c", tuple(range(30)), max_tokens=12), now=0.0)
    world.step()
    assert world.scheduler.num_running == 1
    while world.scheduler.has_work:
        world.step()
    assert not any(plan.num_preempted for plan in world.runner.plans)
