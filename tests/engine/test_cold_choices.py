"""What is chosen for requests on adapters that are on their way, and what copies may take."""

import pytest
from tests.engine.arriving_world import NUM_LAYERS, World

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.routes import ColdStart, Decision

X = AdapterKey("t", "x")
QUEUE = {"max_waiting_requests": 64, "max_waiting_tokens": 4000}


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


def test_of_many_that_wait_so_many_are_asked_for_in_a_step_and_the_others_in_the_next() -> None:
    world = World("choose", max_running=40, num_blocks=400, **QUEUE)
    world.scheduler.routes.copy_bytes_per_s = 1e12
    for number in range(40):
        world.add(f"a{number}", adapter="x", num_prompt_tokens=1 + number % 20)
    world.step()
    asked = watched(world)
    world.come("x", 1)
    counts = []
    for _ in range(4):
        world.step()
        counts.append(len(asked))
    assert counts == [16, 32, 40, 40]


def test_one_that_waits_is_asked_for_again_once_in_each_eighth_of_the_copy() -> None:
    world = World("choose")
    world.scheduler.routes.copy_bytes_per_s = 1e12
    world.add("a", adapter="x")
    world.step()
    asked = watched(world)
    for num_layers in range(32):
        world.residency.note_layers(X, num_layers, 32, is_open=True)
        world.step()
    assert [cold.num_layers for cold in asked] == list(range(0, 32, 4))


def test_a_request_is_predicted_to_run_until_its_adapter_has_come_and_it_has_decoded() -> None:
    world = World(max_step_tokens=16)
    world.scheduler.routes.copy_bytes_per_s = 8.0
    world.add("b", max_tokens=30)
    for _ in range(3):
        world.step()
    world.add("w", adapter="w")
    world.add("a", adapter="x", num_prompt_tokens=6)
    world.step()
    outlook, request = world.scheduler._outlook, world.scheduler._requests["a"]
    world.come("w", 2)
    world.come("x", 1)
    decoding_ms = outlook._output_left(request) * outlook._step_ms
    # Half of an adapter of 8 bytes comes first, then three quarters of its own.
    assert outlook.predicted_run_ms(request) == pytest.approx(500 + 750 + decoding_ms)
    world.arrive("w")
    world.arrive("x")
    assert outlook.predicted_run_ms(request) == pytest.approx(outlook._step_ms + decoding_ms)


def test_a_first_token_is_told_once_with_its_route_and_the_time_since_its_request_came() -> None:
    world = World()
    world.add("a", adapter="x", max_tokens=2)
    world.add("b", max_tokens=1)
    world.step()
    assert world.events.first_tokens == [], "the base model has no route"
    world.come("x", 3)
    world.step()
    world.now = 0.5
    world.come("x", NUM_LAYERS)
    world.step()
    (first,) = world.events.first_tokens
    assert first == ("layer-wise", pytest.approx(world.now))
    world.arrive("x")
    world.step()
    assert world.events.first_tokens == []
    world.add("c", adapter="x", max_tokens=1)
    world.step()
    assert [first.route for first in world.events.first_tokens] == ["resident"]


def test_who_waits_for_blocks_after_its_route_was_chosen_teaches_nothing_of_routes() -> None:
    world = World(num_blocks=8, max_model_len=32)
    world.add("b", num_prompt_tokens=28, max_tokens=4)
    world.step()
    world.add("a", adapter="x", num_prompt_tokens=28, max_tokens=1)
    world.step()
    world.come("x", 0)
    asked = watched(world)
    while "b" not in world.ended:
        world.step()
    world.step()
    world.come("x", 1)
    world.step()
    world.arrive("x")
    while "a" not in world.ended:
        world.step()
    assert asked
    assert world.scheduler.routes.regret.num_requests == 0
