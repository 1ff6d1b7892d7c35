"""Requests begin on adapters that are on their way."""

import pytest
from tests.engine import build
from tests.engine.arriving_world import NUM_BYTES, NUM_LAYERS, World
from tests.engine.simulated_runner import expected_output

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.routes import ColdStart, Decision

X = AdapterKey("t", "x")


def begun(world: World, until_layer: int = NUM_LAYERS, **values: object) -> None:
    """A request whose adapter has two layers of four, in the middle of its pass, which may come as
    far as this in its first step: to the last layer, if it is alone there."""
    world.add("a", adapter="x", **values)
    world.step()
    world.come("x", 2)
    world.step()
    assert world.passes == {"a": (until_layer, True)}


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


def test_a_pass_takes_of_the_step_what_its_layers_cost() -> None:
    world = World(max_step_tokens=16)
    world.add("a", adapter="x", num_prompt_tokens=16)
    world.step()
    world.come("x", 2)
    world.add("b", num_prompt_tokens=16)
    world.step()
    assert world.passes == {"a": (2, True)}
    assert world.plan.num_tokens == 8


def test_the_link_is_bounded_only_while_somebody_decodes() -> None:
    world = World()
    world.scheduler.routes.copy_bytes_per_s = 5000.0
    world.add("b", max_tokens=9)
    world.step()
    assert world.plan.copy_bytes is None
    world.step()
    assert world.plan.copy_bytes == 5, "a step of one token takes a millisecond"


def test_as_long_as_costs_are_not_learned_the_link_is_bounded_by_how_long_a_step_took() -> None:
    world = World(min_learned_steps=2000)
    world.scheduler.routes.copy_bytes_per_s = 5000.0
    world.add("b", max_tokens=9)
    world.step(ms=4.0)
    world.step()
    assert world.plan.copy_bytes == 20


@pytest.mark.parametrize(("link_bytes", "left_bytes"), [(1000, 760), (100, 13)])
def test_adapters_get_what_swapped_blocks_leave_of_the_link_and_a_small_part_in_any_case(
    link_bytes: int, left_bytes: int
) -> None:
    swaps = {"num_host_blocks": 16, "copy_ms_per_block": 0.1, "kv_block_bytes": 40}
    world = World(num_blocks=12, prefix_cache=False, **swaps)
    world.scheduler.routes.copy_bytes_per_s = 1000.0 * link_bytes
    for name in "ab":
        world.add(name, num_prompt_tokens=20, max_tokens=20)
    while not world.plan.copies_out:
        world.step()
    (copy,) = world.plan.copies_out
    assert (len(world.plan.decodes), len(copy.host_blocks)) == (1, 6)
    assert world.plan.copy_bytes == left_bytes


def test_a_request_for_which_waiting_was_best_teaches_how_long_that_took() -> None:
    world = World("choose")
    world.add("a", adapter="x")
    world.step()
    world.come("x", 1)
    world.step()
    assert not world.passes
    world.now += 1.0
    world.arrive("x")
    world.step()
    assert world.scheduler.routes.regret.num_requests == 1
    assert world.scheduler.routes.regret.taken_ms >= 1000


def test_what_a_request_began_for_stands_until_a_layer_lets_its_pass_begin() -> None:
    world = World("choose")
    world.scheduler.routes.copy_bytes_per_s = 1000.0
    world.add("a", adapter="x")
    world.step()
    world.come("x", 0)
    world.step()
    assert world.scheduler.num_running == 1
    world.scheduler.routes.copy_bytes_per_s = 1e12  # by which it would do best to wait
    world.come("x", 1)
    world.step()
    assert world.passes.keys() == {"a"}


def watched(world: World) -> list[ColdStart]:
    """What is asked of the chooser from now on."""
    asked: list[ColdStart] = []
    routes, choose = world.scheduler.routes, world.scheduler.routes.choose

    def look(cold: ColdStart) -> Decision:
        asked.append(cold)
        return choose(cold)

    routes.choose = look  # type: ignore[method-assign]  # looked at, not changed
    return asked


def test_a_choice_is_made_for_what_decodes_beside_it_and_what_that_reads() -> None:
    world = World("choose")
    world.add("b", num_prompt_tokens=5, max_tokens=9)
    world.add("c", num_prompt_tokens=3, max_tokens=9)
    world.step()
    asked = watched(world)
    world.add("a", adapter="x", max_tokens=2)
    world.step()
    world.come("x", 1)
    world.step()
    assert [(cold.num_decodes, cold.decode_context) for cold in asked] == [(2, 5 + 3 + 2)]


def test_what_is_held_until_its_adapter_is_there_decodes_beside_nobody() -> None:
    world = World("assist")
    world.add("a", adapter="x", max_tokens=3)
    world.step()
    world.come("x", 0)
    world.step()
    assert len(world.tokens["a"]) == 1
    asked = watched(world)
    world.add("b", adapter="x")
    world.step()
    assert [(cold.num_decodes, cold.decode_context) for cold in asked] == [(0, 0)]


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
