"""How a request goes on whose adapter is not there: predictions, choices, what is learned."""

from typing import get_args

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.engine.route_world import LAYERS, Costs, World

from loraplex.engine.config import RouteMode
from loraplex.engine.route_learning import CopyRate, Corrections, HostRate
from loraplex.engine.routes import ColdRoute, ColdStart, Routes

ROUTES = get_args(ColdRoute)


def cold(**changes: float) -> ColdStart:
    start = ColdStart(256, 0, 16.0, 0, 64_000_000, 0, LAYERS, 0)
    return start._replace(**changes)


def routes(mode: RouteMode = "choose", assistants: int = 2, rate: float = 1e9) -> Routes:
    return Routes(Costs(), mode, assistants, rate)  # type: ignore[arg-type]  # predicts only


COLD = st.builds(
    ColdStart,
    num_tokens=st.integers(1, 4000),
    num_context=st.integers(0, 4000),
    rank=st.floats(0, 64),
    bytes_ahead=st.integers(0, 10**9),
    bytes_left=st.integers(1, 10**9),
    num_layers=st.integers(0, 79),
    of_layers=st.just(80),
    num_decodes=st.sampled_from([0, 1, 40]),
    decode_context=st.integers(0, 10**5),
)


@given(COLD, st.floats(1e6, 1e11), st.floats(1.0, 100.0))
def test_a_faster_link_makes_no_route_later_but_for_a_step_of_those_that_decode(
    start: ColdStart, rate: float, faster: float
) -> None:
    slow, fast = routes(rate=rate).choose(start), routes(rate=rate * faster).choose(start)
    step_ms = 8.2 + 0.06 * start.num_decodes if start.num_decodes else 0.0
    for route in ("wait", "layer-wise"):
        least = slow.predicted_ms[route] * (1 + 1e-9) + step_ms
        assert fast.predicted_ms[route] <= least
    # A layer that comes in time is computed by the device, which is no slower than the host's way.
    assert fast.predicted_ms["assist"] <= slow.predicted_ms["assist"] * (1 + 1e-9)


@given(COLD, st.sampled_from(["choose", "wait", "layer-wise", "assist"]))
def test_the_host_is_never_chosen_without_processes(start: ColdStart, mode: RouteMode) -> None:
    decision = routes(mode, assistants=0).choose(start)
    assert decision.route != "assist"
    assert "assist" not in decision.predicted_ms


@given(COLD)
def test_an_adapter_of_which_all_has_come_is_as_one_that_was_there(start: ColdStart) -> None:
    there = start._replace(num_layers=start.of_layers, bytes_left=0)
    decision = routes().choose(there)
    assert decision.route == "wait"
    squared = start.num_tokens**2
    rows = start.num_tokens + start.num_decodes
    assert decision.predicted_ms == {"wait": pytest.approx(8.0 + 0.06 * rows + 1e-5 * squared)}


@given(COLD, st.floats(1e7, 1e10))
def test_a_pass_is_predicted_as_a_walk_over_its_layers_takes(start: ColdStart, rate: float) -> None:
    start = start._replace(num_layers=0, num_context=0)
    world = World(rate, 5e-2 / 2, 0.2, 1.0, 0.0)
    predicted = routes(rate=rate).choose(start).predicted_ms
    step_ms = 8.2 + 0.06 * start.num_decodes if start.num_decodes else 0.0
    host_ms = 0.2 + 5e-2 / 2 * start.num_tokens * start.bytes_left / start.of_layers / 1e6
    for route in ROUTES:
        # A walk of many turns is followed at its end; an arrival may fall just before a step's.
        # A layer that the host computes is counted once more.
        allowed = 2 * step_ms if route != "assist" else host_ms
        stops = 0.02 if start.num_decodes and route == "layer-wise" else 0.0
        walked = world.ms(route, start)
        assert predicted[route] == pytest.approx(walked, rel=1e-6 + stops, abs=allowed + 1e-6)


def test_what_is_not_clearly_better_than_waiting_is_not_chosen() -> None:
    # All of the copy takes 1 ms, the prompt 24.
    fast = routes(rate=64e9).choose(cold())
    assert fast.predicted_ms["layer-wise"] < fast.predicted_ms["wait"]
    assert fast.route == "wait"
    chooser = routes(rate=1e9)
    assert chooser.choose(cold()).route == "layer-wise"
    for _ in range(9):
        chooser.note_host(256, 64_000_000, 32 * 0.5, LAYERS)
    assert chooser.choose(cold()).route == "assist"


def test_a_forced_route_is_taken_wherever_it_is_possible() -> None:
    for mode in ("wait", "layer-wise", "assist"):
        assert routes(mode).choose(cold()).route == mode
    assert routes("assist", assistants=0).choose(cold()).route == "wait"


WORLDS = st.builds(
    World,
    bytes_per_s=st.floats(2e8, 3e10),
    host_ms_per_work=st.floats(1e-3, 0.5),
    host_fixed_ms=st.floats(0.02, 1.0),
    slowness=st.floats(0.8, 1.4),
    noise=st.floats(0.0, 0.15),
    seed=st.integers(0, 1000),
)


@settings(max_examples=15, phases=[Phase.explicit, Phase.generate])
@given(WORLDS, st.sampled_from([0, 2]))
def test_choices_come_near_the_best_in_hindsight_and_are_no_slower_than_waiting(
    world: World, assistants: int
) -> None:
    chooser = routes(assistants=assistants)
    possible = ROUTES if assistants else ROUTES[:2]
    for _ in range(200):
        world.serve(chooser, world.cold())
    taken = best = waited = 0.0
    for _ in range(200):
        start = world.cold()
        route = world.serve(chooser, start)
        taken += world.ms(route, start)
        best += min(world.ms(each, start) for each in possible)
        waited += world.ms("wait", start)
    assert taken <= best * 1.10
    assert taken <= waited * 1.02


def test_a_copy_that_was_held_up_does_not_change_what_is_known_of_the_link() -> None:
    rate = CopyRate(1e9)
    for seconds in (0.01, 0.01, 0.3, 0.01, 0.01):
        rate.note(50_000_000, seconds)
    assert rate.bytes_per_s == pytest.approx(5e9)
    rate.note(100, 1.0)
    assert rate.bytes_per_s == pytest.approx(5e9)
    for _ in range(9):
        rate.note(50_000_000, 0.05)
    assert rate.bytes_per_s == pytest.approx(1e9)


def test_the_hosts_time_is_learned_as_a_fixed_and_a_proportional_part() -> None:
    host = HostRate(2)
    for tokens in (16, 512, 64, 1024, 128, 256) * 5:
        work = tokens * 4e6 / 2 / 1e6
        host.note(tokens, 4_000_000 * 8, 8 * (0.5 + 0.01 * work), 8)
    for tokens in (8, 300, 2000):
        expected = 0.5 + 0.01 * tokens * 2
        assert host.layer_ms(tokens, 4_000_000) == pytest.approx(expected, rel=0.05)


def test_a_route_that_was_never_seen_is_as_slow_as_those_that_were() -> None:
    corrections = Corrections()
    for _ in range(30):
        corrections.note("wait", 2.0)
    assert corrections.factor("wait") == pytest.approx(2.0, rel=0.05)
    assert corrections.factor("assist") == pytest.approx(2.0, rel=0.1)
    assert corrections.error("assist") > 3 * corrections.error("wait")


def test_one_measurement_that_is_far_off_changes_little() -> None:
    corrections = Corrections()
    for _ in range(30):
        corrections.note("wait", 1.0)
    corrections.note("wait", 100.0)
    assert corrections.factor("wait") < 1.05


def test_bad_luck_at_the_beginning_is_forgotten() -> None:
    world = World(1e9, 1e-3, 0.05, 1.0, 0.0)
    chooser = routes()
    for _ in range(12):
        decision = routes("assist").choose(world.cold())
        chooser.note_first_token(decision, decision.plain_ms * 4)
    assert chooser.choose(cold()).route != "assist"
    seen = [world.serve(chooser, world.cold()) for _ in range(500)]
    assert seen[-100:].count("assist") > 50


def test_regret_is_what_another_route_would_have_saved_by_what_is_known_afterwards() -> None:
    world = World(1e9, 1e-3, 0.05, 1.0, 0.0)
    waiting, choosing = routes("wait"), routes()
    for chooser in (waiting, choosing):
        for _ in range(100):
            world.serve(chooser, world.cold())
        assert chooser.regret.num_requests == 100
    assert waiting.regret.ratio > 0.2
    assert choosing.regret.ratio < 0.05


def test_what_requests_took_corrects_what_is_predicted_for_those_after_them() -> None:
    chooser = routes("layer-wise")
    before = chooser.choose(cold()).predicted_ms["layer-wise"]
    for _ in range(30):
        decision = chooser.choose(cold())
        chooser.note_first_token(decision, decision.plain_ms * 1.5)
    after = chooser.choose(cold()).predicted_ms["layer-wise"]
    assert after == pytest.approx(1.5 * before, rel=0.05)


def test_what_only_its_margin_rules_out_is_tried_after_a_few_outcomes_of_waiting() -> None:
    chooser = routes(assistants=0, rate=20e9)
    seen = []
    for _ in range(10):
        decision = chooser.choose(cold())
        seen.append(decision.route)
        chooser.note_first_token(decision, decision.plain_ms)
    assert seen == ["wait"] * 8 + ["layer-wise"] * 2


def test_nothing_is_concluded_from_predictions_that_were_made_before_steps_were_learned() -> None:
    chooser = routes()
    chooser._costs.num_steps = 63  # type: ignore[misc]  # the test's own
    for _ in range(9):
        chooser.note_first_token(chooser.choose(cold()), 1e3)
    assert chooser.regret.num_requests == 0
    assert chooser.choose(cold()).predicted_ms == routes().choose(cold()).predicted_ms


def test_what_was_learned_of_a_route_weighs_less_the_longer_others_are_seen() -> None:
    kept, faded = Corrections(), Corrections()
    for corrections in (kept, faded):
        for _ in range(12):
            corrections.note("assist", 2.0)
    for _ in range(200):
        faded.note("wait", 1.0)
    for corrections in (kept, faded):
        corrections.note("assist", 1.2)
        corrections.note("assist", 1.2)
    assert kept.factor("assist") > 1.75
    assert faded.factor("assist") < 1.4


def test_one_layer_that_just_misses_its_turn_costs_what_the_host_takes_longer() -> None:
    # Layers come every 10 ms and the host takes 10 ms for each: all but the last are helped.
    start = cold(num_tokens=256, bytes_left=320_000_000)
    chooser = routes(rate=1e9)
    for _ in range(40):
        chooser.note_host(256, 320_000_000, LAYERS * 8.0, LAYERS)
    host_ms = chooser._host.layer_ms(256, 10_000_000)
    layer_ms = (8.0 + 0.06 * 256 + 1e-5 * 256**2) / LAYERS
    assist_ms = chooser.choose(start).predicted_ms["assist"]
    assert assist_ms == pytest.approx(LAYERS * host_ms + host_ms - layer_ms)
