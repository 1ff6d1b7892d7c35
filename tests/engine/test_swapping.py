"""Preempted requests whose keys and values are kept on the host."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from tests.engine import build
from tests.engine.fair_world import SETTINGS
from tests.engine.linear_costs import LinearCosts
from tests.engine.simulated_runner import SimulatedRunner, expected_output

from loraplex.adapters.residency import Residency
from loraplex.engine.core import StepReport
from loraplex.engine.events import Events
from loraplex.engine.fair_admission import FairAdmission
from loraplex.engine.host_blocks import HostBlocks, HostCopy
from loraplex.engine.metrics import WorkerMetrics
from loraplex.engine.plan import StepPlan
from loraplex.engine.scheduler import Scheduler

CONFIG = build.config(num_blocks=12, num_host_blocks=16, copy_ms_per_block=0.1)
"""A block is copied in a fortieth of the time that its four tokens take."""
PROMPTS = {"a": tuple(range(20)), "b": tuple(range(100, 120))}
NUM_TOKENS = 20


class World:
    def __init__(self, scheduler: Scheduler | None = None, **changes: object) -> None:
        self.scheduler = scheduler or build.scheduler(replace(CONFIG, **changes))
        self.runner = SimulatedRunner(12, 4)
        self.outputs: dict[str, list[int]] = {}
        self.plans: list[StepPlan] = []
        for name, prompt in PROMPTS.items():
            self.scheduler.add(build.submit(name, 20, NUM_TOKENS, prompt=prompt), now=0.0)

    def step(self, copy_ms: float = 0.0) -> Events:
        plan = self.scheduler.plan(now=0.0)
        self.plans.append(plan)
        self.runner.copy(plan)
        events = self.scheduler.commit(plan, self.runner.run(plan), 1.0, copy_ms)
        self.scheduler.check()
        self.runner.poison(self.scheduler.blocks.pool.free())
        for tokens in events.tokens:
            self.outputs.setdefault(tokens.request_id, []).extend(tokens.ids)
        return events

    def run_until_preempted(self) -> None:
        while not (self.plans and self.plans[-1].preempted):
            self.step()

    def run(self) -> None:
        while self.scheduler.has_work:
            self.step()


def expected() -> dict[str, list[int]]:
    return {
        name: expected_output(prompt, None, NUM_TOKENS, build.EOS)
        for name, prompt in PROMPTS.items()
    }


def test_a_request_that_was_copied_out_and_back_goes_on_where_it_was() -> None:
    world = World(prefix_cache=False)
    world.run()
    assert world.outputs == expected()
    (out,) = [copy for plan in world.plans for copy in plan.copies_out]
    (back,) = [copy for plan in world.plans for copy in plan.copies_in]
    assert out.request_id == back.request_id == "b"
    assert back.host_blocks == out.host_blocks
    # Each token was computed once, and of each request all but the last.
    assert world.runner.num_computed == 2 * (20 + NUM_TOKENS - 1)
    assert world.scheduler.blocks.swapping.num_free_blocks == 16


def test_what_is_found_in_the_prefix_cache_is_not_copied_back() -> None:
    world = World()
    world.run()
    assert world.outputs == expected()
    (out,) = [copy for plan in world.plans for copy in plan.copies_out]
    num_back = sum(len(copy.host_blocks) for plan in world.plans for copy in plan.copies_in)
    assert num_back < len(out.host_blocks)
    assert world.runner.num_computed == 2 * (20 + NUM_TOKENS - 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_host_blocks": 0},
        {"num_host_blocks": 5},
        {"copy_ms_per_block": 100.0},
    ],
)
def test_what_cannot_be_copied_or_is_computed_sooner_is_computed_again(
    changes: dict[str, float],
) -> None:
    world = World(**changes)
    world.run()
    assert world.outputs == expected()
    assert [p.is_swapped for plan in world.plans for p in plan.preempted] == [False]
    assert not any(plan.num_copied_blocks for plan in world.plans)


def test_the_plan_tells_which_way_was_taken_and_what_it_is_predicted_to_cost() -> None:
    world = World()
    world.run_until_preempted()
    (preempted,) = world.plans[-1].preempted
    num_blocks = len(world.plans[-1].copies_out[0].host_blocks)
    assert preempted.is_swapped
    assert preempted.cost_ms == pytest.approx(2 * num_blocks * 0.1)


def test_a_request_that_is_aborted_while_it_is_out_gives_its_host_blocks_back() -> None:
    world = World()
    world.run_until_preempted()
    assert world.scheduler.blocks.swapping.num_free_blocks < 16
    world.scheduler.abort("b", now=0.0)
    world.scheduler.check()
    assert world.scheduler.blocks.swapping.num_free_blocks == 16
    world.run()
    assert world.outputs["a"] == expected()["a"]


def test_a_copy_of_a_step_that_failed_is_not_used() -> None:
    world = World(prefix_cache=False)
    while True:
        plan = world.scheduler.plan(now=0.0)
        if plan.copies_out:
            break
        world.scheduler.commit(plan, world.runner.run(plan))
    world.scheduler.fail_step(plan, "broken")  # before anything was copied
    world.scheduler.check()
    assert [failed.request_id for failed in world.scheduler.take_events().failed] == ["a"]
    num_computed = world.runner.num_computed
    world.run()
    # What it had is computed again, and then the rest.
    assert world.runner.num_computed - num_computed == 20 + NUM_TOKENS - 1
    assert not any(plan.copies_in for plan in world.plans)


def test_the_time_of_copies_is_learned() -> None:
    world = World(num_host_blocks=16, copy_ms_per_block=0.0)
    world.run_until_preempted()
    num_blocks = world.plans[-1].num_copied_blocks
    assert world.plans[-1].preempted[0].cost_ms == 0.0
    world.scheduler.blocks.swapping.copied(world.plans[-1], num_blocks * 3.0)
    (request,) = [r for r in world.scheduler._requests.values() if r.host_copy is not None]
    assert world.scheduler.blocks.swapping.return_ms(request, 0) == pytest.approx(num_blocks * 3.0)
    assert world.scheduler.blocks.swapping.return_ms(request, num_blocks - 1) == pytest.approx(3.0)


def test_copies_are_charged_to_whom_they_were_for_and_are_no_part_of_a_steps_time() -> None:
    told: dict[str, float] = {}
    costs = LinearCosts()
    observed: list[float] = []
    costs.observe = lambda step, ms: observed.append(ms)
    scheduler = build.scheduler(CONFIG, costs=costs)
    world = World(scheduler)
    scheduler.blocks.swapping._tell = told.update
    while scheduler.has_work:
        world.step(copy_ms=2.5)
    assert told == {"b": 5.0}
    assert set(observed) == {1.0}


def test_a_copy_of_what_is_found_on_return_is_charged_too() -> None:
    told: dict[str, float] = {}
    # Of 16 computed tokens all are in full blocks, which are cached when it returns.
    scheduler = build.scheduler(
        build.config(num_blocks=40, num_host_blocks=20, max_running=1, copy_ms_per_block=0.01),
        policy=FairAdmission(SETTINGS),
    )
    scheduler.blocks.swapping._tell = told.update
    runner, copied = SimulatedRunner(40, 4), []

    def step() -> None:
        plan = scheduler.plan(now=0.0)
        copied.append((len(plan.copies_out), len(plan.copies_in)))
        scheduler.commit(plan, runner.run(plan), 1.0, 2.5)
        scheduler.check()

    scheduler.add(build.submit("flex", 15, 12, service_tier="flex"), now=0.0)
    step()
    step()
    scheduler.add(build.submit("main", 3, 2), now=0.0)
    while scheduler.has_work:
        step()
    assert (sum(out for out, _ in copied), sum(back for _, back in copied)) == (1, 0)
    assert told == {"flex": 2.5}


@pytest.mark.parametrize("is_early", [True, False])
def test_a_request_that_ends_while_it_is_out_has_used_its_copy_and_leaves_nothing(
    *, is_early: bool
) -> None:
    """Early: before the step that copies it has ended."""
    told: dict[str, float] = {}
    world = World()
    world.scheduler.blocks.swapping._tell = told.update
    while True:
        plan = world.scheduler.plan(now=0.0)
        if plan.copies_out:
            break
        world.scheduler.commit(plan, world.runner.run(plan))
    if is_early:
        world.scheduler.abort("b", now=0.0)
    world.scheduler.commit(plan, world.runner.run(plan), 1.0, 2.5)
    world.scheduler.abort("b", now=0.0)
    world.scheduler.check()
    assert told == ({} if is_early else {"b": 2.5})


def test_host_blocks_that_a_step_reads_are_free_from_the_next_step_on() -> None:
    world = World()
    world.run_until_preempted()
    swapping = world.scheduler.blocks.swapping
    (request,) = [r for r in world.scheduler._requests.values() if r.host_copy is not None]
    num_blocks, num_free = len(request.host_copy.blocks), swapping.num_free_blocks
    request.block_table = list(range(num_blocks))
    draft = SimpleNamespace(copies_in=[])
    swapping.copy_back(request, draft)
    assert len(draft.copies_in[0].host_blocks) == num_blocks
    assert swapping.num_free_blocks == num_free
    swapping.begin_step()
    assert swapping.num_free_blocks == num_free + num_blocks


def test_a_request_that_does_not_decode_is_not_copied() -> None:
    scheduler, runner = build.scheduler(CONFIG), SimulatedRunner(12, 4)
    scheduler.add(build.submit("a", 30, 3), now=0.0)
    (request,) = scheduler._requests.values()
    copied_ms = []
    for _ in range(2):
        plan = scheduler.plan(now=0.0)
        scheduler.commit(plan, runner.run(plan))
        copied_ms.append(scheduler.blocks.swapping.round_trip_ms(request))
    assert copied_ms == [None, pytest.approx(2 * 8 * 0.1)]


def test_metrics_tell_which_way_preempted_requests_went() -> None:
    registry = CollectorRegistry()
    world = World()
    metrics = WorkerMetrics(registry, world.scheduler, Residency(0))
    world.run_until_preempted()
    metrics.observe(StepReport(world.plans[-1], Events()))
    value = registry.get_sample_value
    ways = {way: value("loraplex_preemptions_total", {"way": way}) for way in ("swap", "recompute")}
    assert ways == {"swap": 1, "recompute": 0}
    num_held = len(world.plans[-1].copies_out[0].host_blocks)
    assert value("loraplex_host_kv_blocks", {"state": "held"}) == num_held
    assert value("loraplex_host_kv_blocks", {"state": "free"}) == 16 - num_held


@given(
    actions=st.lists(
        st.tuples(st.sampled_from(["take", "give", "read", "step"]), st.integers(1, 4))
    )
)
def test_host_blocks_are_free_or_held_or_being_read(actions: list[tuple[str, int]]) -> None:
    pool, copies = HostBlocks(8), []
    for action, number in actions:
        if action == "take" and number <= pool.num_free:
            copies.append(HostCopy(pool.take(number), number))
        elif action == "step":
            pool.begin_step()
        elif action in {"give", "read"} and copies:
            copy = copies.pop(number % len(copies))
            num_free = pool.num_free
            pool.give_back(copy.blocks, after_step=action == "read")
            assert (pool.num_free > num_free) == (action == "give")
        pool.check(copies)
