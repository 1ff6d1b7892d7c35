"""Requests begin on adapters that are on their way."""

import pytest
from tests.engine import build
from tests.engine.arriving_world import NUM_BYTES, NUM_LAYERS, World, begun
from tests.engine.simulated_runner import expected_output

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.protocol import Sampling
from loraplex.engine.step_budget import Demand

X = AdapterKey("t", "x")


def test_a_request_begins_on_the_layers_that_have_come() -> None:
    world = World()
    world.add("b")
    begun(world, until_layer=2, max_tokens=1)
    assert world.tokens.keys() == {"b"}
    world.come("x", NUM_LAYERS)
    world.step()
    assert world.tokens["a"] == expected_output(build.submit("a").prompt, X, 1, build.EOS)


def test_decodes_get_their_tokens_in_every_step_while_a_pass_waits_for_layers() -> None:
    world = World()
    world.add("b", max_tokens=9)
    begun(world, until_layer=2)
    for _ in range(3):
        before = len(world.tokens["b"])
        world.step()
        assert world.passes == {"a": (2, False)}
        assert world.plan.cold[0].wait_ms == 0
        assert len(world.tokens["b"]) == before + 1


def test_a_step_that_computes_nothing_else_waits_for_layers_and_none_begins_without_any() -> None:
    world = World()
    begun(world)
    assert world.plan.cold[0].wait_ms > 0
    world.step()
    assert world.plan.num_requests == 0, "the loop would spin"
    assert [cold.chunk.request_id for cold in world.plan.cold] == ["a"], "its pass was given up"


def test_two_requests_on_one_arriving_adapter_share_its_load() -> None:
    world = World()
    world.add("a", adapter="x")
    world.add("b", adapter="x")
    world.step()
    assert world.plan.loads == (X,)
    world.come("x", 2)
    world.step()
    assert world.passes == {"a": (2, True), "b": (2, True)}
    assert world.plan.loads == ()
    assert world.residency.get(X).leases == 2
    world.come("x", NUM_LAYERS)
    world.step()
    assert world.residency.counts.routes == {"layer-wise": 2}


def test_a_failed_copy_fails_those_that_run_on_it_and_frees_their_blocks() -> None:
    world = World()
    begun(world)
    world.add("b", adapter="x")
    world.fail("x")
    assert world.ended == {"a": "adapter_load_failed", "b": "adapter_load_failed"}
    assert world.scheduler.num_free_blocks == world.config.num_blocks
    assert world.residency.num_leases == 0
    world.scheduler.check()


def test_an_abort_in_the_middle_gives_back_blocks_and_lease() -> None:
    world = World()
    begun(world)
    world.scheduler.abort("a", world.now)
    world.step()
    assert world.plan.cold == ()
    assert world.scheduler.num_free_blocks == world.config.num_blocks
    assert world.residency.num_leases == 0


def test_what_a_pass_has_computed_in_part_is_billed_to_nobody() -> None:
    world = World()
    begun(world)
    world.scheduler.abort("a", world.now)
    (ending,) = world.scheduler.take_events().finished
    assert ending.usage.prompt_tokens == 0


def test_a_step_that_breaks_fails_those_whose_passes_were_in_it() -> None:
    world = World()
    begun(world)
    world.add("b")
    plan = world.scheduler.plan(world.now)
    world.scheduler.fail_step(plan, "broken")
    world.take(world.scheduler.take_events())
    assert world.ended == {"a": "internal_error", "b": "internal_error"}


def test_what_the_host_helped_to_its_first_token_decodes_when_its_adapter_is_there() -> None:
    world = World("assist")
    world.add("a", adapter="x", max_tokens=3)
    world.step()
    world.come("x", 0)
    world.step()
    assert len(world.tokens["a"]) == 1
    assert world.residency.counts.routes == {"assist": 1}
    world.step()
    assert world.plan.num_requests == 0
    world.arrive("x")
    world.step()
    world.step()
    assert world.tokens["a"] == expected_output(build.submit("a").prompt, X, 3, build.EOS)


def test_who_begins_on_a_prefetch_that_is_there_before_its_pass_is_the_one_it_was_for() -> None:
    world = World(prefetch="queue")
    assert world.scheduler.prefetch.warm(X, NUM_BYTES, until_s=1e9)
    world.step()
    assert world.plan.prefetches == (X,)
    world.come("x", 0)
    world.add("a", adapter="x")
    world.step()
    assert world.plan.claims == (X,)
    world.arrive("x")
    world.step()
    assert world.residency.counts.routes == {"prefetch": 1}


def test_nobody_counts_on_the_host_when_its_processes_are_gone() -> None:
    world = World("assist")
    world.add("a", adapter="x")
    world.step()
    world.come("x", 0)
    world.add("b")
    plan = world.scheduler.plan(world.now)
    assert plan.cold[0].may_assist
    world.scheduler.fail_step(plan, "broken")
    world.add("c", adapter="x")
    world.scheduler.routes.num_assistants = 0
    world.step()
    assert not world.plan.cold


def test_what_needs_no_adapter_is_computed_before_any_layer_has_come() -> None:
    world = World()
    world.add("a", adapter="x", num_prompt_tokens=8, adapter_start=5)
    world.step()
    world.come("x", 0)
    world.step()
    (chunk,) = world.plan.prefills
    assert (chunk.adapter, chunk.start, len(chunk.token_ids)) == (None, 0, 5)
    world.come("x", 3)
    world.step()
    assert world.plan.cold[0].chunk.start == 5


def test_no_more_passes_are_under_way_than_may_be() -> None:
    world = World(max_cold_passes=1)
    world.add("a", adapter="x")
    world.add("b", adapter="x")
    world.step()
    world.come("x", 2)
    world.step()
    assert world.passes.keys() == {"a"}
    world.arrive("x")
    world.step()
    assert {"a", "b"} <= world.tokens.keys()


def test_one_adapter_takes_half_of_the_places_and_who_only_waits_to_decode_takes_none() -> None:
    world = World(max_cold_passes=2)
    for name in "abc":
        world.add(name, adapter="x")
    world.add("d", adapter="y")
    world.step()
    world.come("x", 2)
    world.come("y", 2)
    world.step()
    assert world.passes.keys() == {"a", "d"}


def test_who_has_its_first_token_leaves_its_place_to_others() -> None:
    world = World("assist", max_cold_passes=1)
    world.add("a", adapter="x")
    world.add("b", adapter="x")
    world.step()
    world.come("x", 0)
    world.step()
    assert world.tokens.keys() == {"a"}
    world.step()
    assert world.tokens.keys() == {"a", "b"}


def test_other_choices_begin_as_soon_as_the_prompt_that_they_share_is_computed() -> None:
    world = World("assist", max_cold_passes=8)
    world.add("b", max_tokens=9)
    sampling = Sampling(max_tokens=3, n=3, seed=1)
    world.add("a", adapter="x", num_prompt_tokens=16, sampling=sampling)
    world.step()
    world.come("x", 0)
    for until_part in (15 / 16, 1.0):
        world.step()
        assert world.passes == {"a": (NUM_LAYERS, True)}
        assert world.plan.cold[0].until_part == until_part
    world.step()
    assert world.passes == {"a#1": (NUM_LAYERS, True)}, "no layer has come since"


def test_a_prompt_that_was_admitted_before_a_pass_takes_its_part_of_the_step_first() -> None:
    world = World(max_step_tokens=16)
    world.add("b", adapter="x", num_prompt_tokens=16)
    world.add("a", adapter="y", num_prompt_tokens=16)
    world.step()
    world.come("x", 0)
    world.come("y", 2)
    world.step(ms=1.0)
    assert world.passes.keys() == {"a"}
    world.arrive("x")
    world.come("y", NUM_LAYERS)
    world.step()
    assert world.tokens.keys() == {"b"}
    assert not world.plan.cold[0].advances


def test_what_cannot_be_computed_yet_is_no_demand() -> None:
    world = World(min_learned_steps=0, min_prefill_tokens=1)
    world.add("b", max_tokens=9)
    begun(world, until_layer=2, num_prompt_tokens=16)
    asked: list[Demand] = []
    world.scheduler._step_budget.bound = lambda draft, demand, *_: asked.append(demand)
    world.step()
    world.come("x", 3)
    world.step()
    assert asked == [Demand(0, 0), Demand(4, 1)], "a quarter of the layers, of sixteen tokens"


def test_a_choice_is_counted_once_however_often_it_begins_to_run() -> None:
    world = World(num_blocks=12, prefix_cache=False)
    for name in "ab":
        world.add(name, adapter="x", num_prompt_tokens=20, max_tokens=20)
    world.step()
    world.arrive("x")
    while world.scheduler.has_work:
        world.step()
    assert world.residency.counts.num_uses > 2, "nobody was preempted"
    assert world.residency.counts.routes == {"wait": 1, "join": 1}


def test_a_pass_that_is_given_up_counts_as_none() -> None:
    world = World()
    begun(world)
    world.scheduler.abort("a", world.now)
    world.step()
    assert world.residency.counts.routes == {}


def test_a_pass_takes_of_the_step_what_its_layers_cost() -> None:
    world = World(max_step_tokens=16)
    world.add("a", adapter="x", num_prompt_tokens=16)
    world.step()
    world.come("x", 2)
    world.add("b", num_prompt_tokens=16)
    world.step()
    assert world.passes == {"a": (2, True)}
    assert world.plan.num_tokens == 8


def test_a_pass_takes_less_of_a_step_where_the_host_is_slower_than_the_device() -> None:
    world = World("assist", max_step_tokens=16)
    routes = world.scheduler.routes
    for _ in range(50):
        routes.note_host(num_tokens=4, num_bytes=NUM_BYTES, ms=2 * 4.0 * NUM_LAYERS, num_layers=4)
    world.add("a", adapter="x", num_prompt_tokens=16)
    world.step()
    world.come("x", 0)
    world.add("b", num_prompt_tokens=16)
    world.step()
    (cold,) = world.plan.cold
    slowness = world.scheduler._cold._begun["a"].run.asked.decision.host_slowness
    assert slowness > 1.5
    assert cold.until_part == pytest.approx(1 / slowness)
    assert world.plan.num_tokens == 0
    left = world.scheduler._cold.left(world.scheduler._requests["a"])
    assert left == pytest.approx(16 * (slowness - 1), abs=slowness + 1), "asked of the next steps"


def test_a_pass_gets_what_the_step_has_left_even_if_its_adapter_touches_few_layers() -> None:
    world = World(max_step_tokens=16)
    world.add("a", adapter="x", num_prompt_tokens=16, max_tokens=1)
    world.step()
    world.add("b", num_prompt_tokens=28)
    world.step()
    world.runner.layers[X] = 1, 2
    world.residency.note_layers(X, 1, 2, is_open=True)
    world.step()
    (cold,) = world.plan.cold
    assert (world.plan.num_tokens, cold.until_part) == (12, 4 / 16)
    assert [part.num_rows for part in world.scheduler._draft.passes] == [4]
    world.runner.layers[X] = 2, 2
    world.residency.finish_load(X)
    world.step()
    assert world.tokens["a"] == expected_output(build.submit("a", 16).prompt, X, 1, build.EOS)
