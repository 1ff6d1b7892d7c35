"""Passes: when they rest, how they end, and what is left of them."""

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest
import torch
from msgspec.structs import replace
from tests.engine.alone import RTOL
from tests.engine.cold_world import ColdWorld, chunk, everything, make_model, make_world, widths
from tests.engine.fake_assist import FakeAssist
from tests.engine.packed_greedy import GREEDY
from torch import Tensor

from loraplex.engine.lora_batch import Turn
from loraplex.engine.plan import ColdChunk, ColdOutput
from loraplex.engine.turns import Turns
from loraplex.kernels.cpu_kernels import CpuKernels

EACH_LAYER = {"target_modules": ["q_proj", "v_proj", "o_proj", "down_proj"], "r": 4}
FEW = {
    "head": {"target_modules": ["lm_head"]},
    "output": {"target_modules": ["o_proj"]},
    "one": {"target_modules": ["k_proj"]},
    "last": {"target_modules": ["up_proj"], "layers_to_transform": [2]},
}
NUM_LAYERS = 3


@pytest.fixture(scope="module")
def shared_world(
    tmp_path_factory: pytest.TempPathFactory, compiled_kernels: CpuKernels
) -> ColdWorld:
    folder = tmp_path_factory.mktemp("world")
    model = make_model(folder, "Llama", compiled_kernels)
    return make_world(folder, model, {"all": EACH_LAYER, **FEW}, FakeAssist(widths(model)))


@pytest.fixture
def assist(shared_world: ColdWorld) -> FakeAssist:
    """A new one, which all passes ask that begin."""
    runner = shared_world.runner
    runner.assist = fake = FakeAssist(widths(runner.model))
    return fake


@pytest.fixture
def world(shared_world: ColdWorld, assist: FakeAssist) -> Iterator[ColdWorld]:
    del assist
    yield shared_world
    shared_world.clear()
    assert passes_alive() == 0
    assert shared_world.runner._lora.exchange(Turn()) == Turn()


def passes_alive() -> int:
    return sum(thread.name == "cold-pass" for thread in threading.enumerate())


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert torch.isfinite(found).all()
    assert (found - expected).abs().max() <= RTOL * expected.abs().max()


def test_a_pass_rests_before_the_layer_up_to_which_it_may_go(world: ColdWorld) -> None:
    own = chunk("own", "all")
    world.copy("all").give(NUM_LAYERS)
    for until in (0, 2, 2, 1):
        output = world.step(ColdChunk(own, until)).cold["own"]
        assert output._replace(part=0.0) == ColdOutput(min(2, max(until, output.num_layers)))
        assert passes_alive() == 1
    output = world.step(ColdChunk(own, NUM_LAYERS)).cold["own"]
    assert (output.num_layers, output.is_done) == (NUM_LAYERS, True)
    assert passes_alive() == 0


def test_a_pass_that_does_not_advance_in_a_step_stays_where_it_is(world: ColdWorld) -> None:
    own = chunk("own", "all")
    copy = world.copy("all")
    world.step(everything(own))
    copy.give(NUM_LAYERS)
    still = world.step(ColdChunk(own, 99, advances=False), main=(chunk("d", None, 1),))
    assert still.cold["own"]._replace(part=0.0) == ColdOutput(0)
    assert world.step(everything(own)).cold["own"].is_done


@pytest.mark.parametrize("adapter", FEW)
@pytest.mark.parametrize("by", ["device", "host"])
def test_layers_that_an_adapter_leaves_alone_are_waited_for_by_nobody(
    world: ColdWorld, adapter: str, by: str
) -> None:
    own = chunk("own", adapter)
    expected = world.resident_logits(own)
    copy = world.copy(adapter)
    if by == "device":
        while not world.step(everything(own)).cold["own"].is_done:
            copy.give()
        assert torch.equal(world.runner.pass_logits["own"], expected)
    else:
        output = world.step(everything(own, may_assist=True)).cold["own"]
        assert (output.is_done, output.num_host_layers) == (True, copy.num_layers)
        assert_close(world.runner.pass_logits["own"], expected)


@pytest.mark.parametrize("adapter", ["all", "last"])
def test_a_pass_rests_after_its_part_of_the_step_also_where_the_adapter_touches_nothing(
    world: ColdWorld, adapter: str
) -> None:
    own = chunk("own", adapter)
    expected = world.resident_logits(own)
    copy = world.copy(adapter)
    copy.give(copy.num_layers)
    part, num_steps, is_done = 0.0, 0, False
    while not is_done:
        cold = ColdChunk(own, NUM_LAYERS, until_part=part + 0.01)
        output = world.step(cold).cold["own"]
        assert part < output.part < part + 0.3
        part, num_steps, is_done = output.part, num_steps + 1, output.is_done
    assert num_steps >= 3 * NUM_LAYERS
    assert torch.equal(world.runner.pass_logits["own"], expected)


def test_a_wait_for_a_layer_ends_with_the_first_news(
    world: ColdWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    news = iter([False, False, True])
    monkeypatch.setattr(world.runner, "has_news", lambda: next(news))
    world.copy("all")
    output = world.step(everything(chunk("own", "all"), wait_ms=1e5)).cold["own"]
    assert not output.is_done
    assert next(news, None) is None, "it did not look"
    assert 0 < output.waited_ms < 1e4


def test_a_chunk_that_does_not_end_its_prompt_needs_no_head(world: ColdWorld) -> None:
    own = chunk("own", "head", sample=None)
    world.copy("head")
    assert world.step(everything(own)).cold["own"] == ColdOutput(1, is_done=True, part=1.0)


def test_a_step_waits_for_layers_as_long_as_it_may(world: ColdWorld) -> None:
    own, other = chunk("own", "all"), chunk("other", "all", 1)
    copy = world.copy("all")
    copy.give()
    output = world.step(everything(own, wait_ms=1.0), everything(other, wait_ms=1.0))
    assert [each.num_layers for each in output.cold.values()] == [1, 1]
    assert 1.0 <= sum(each.waited_ms for each in output.cold.values()) < 1e4
    assert output.cold["other"].waited_ms == 0
    copy.give_later()
    output = world.step(everything(own, wait_ms=1e5), everything(other, wait_ms=1e5))
    assert all(each.is_done for each in output.cold.values())


def test_what_the_host_has_lost_is_waited_for_at_that_very_place(
    world: ColdWorld, assist: FakeAssist
) -> None:
    own = chunk("own", "all")
    expected = world.resident_logits(own)
    for lost in range(8):
        assist.asked.clear()
        assist.lost = frozenset({lost})
        copy = world.copy("all")
        output = world.step(everything(own, may_assist=True)).cold["own"]
        assert not output.is_done
        assert len(assist.asked) == lost + 1
        # Nobody asks for it again, however often the pass may go on.
        again = world.step(everything(own, may_assist=True)).cold["own"]
        assert (again, len(assist.asked)) == (output, lost + 1)
        while copy.progress.num_layers <= output.num_layers:
            copy.give()
        assert world.step(everything(own, may_assist=True)).cold["own"].is_done
        assert_close(world.runner.pass_logits["own"], expected)


def test_without_anybody_to_ask_a_pass_waits_for_the_device(
    world: ColdWorld, assist: FakeAssist
) -> None:
    own = chunk("own", "all")
    expected = world.resident_logits(own)
    copy = world.copy("all")
    assist.refuses_from = 5
    assert not world.step(everything(own, may_assist=True)).cold["own"].is_done
    assist.num_ready = 0
    assert not world.step(everything(own, may_assist=True)).cold["own"].is_done
    copy.give(NUM_LAYERS)
    output = world.step(everything(own, may_assist=True)).cold["own"]
    assert (output.is_done, output.num_host_layers) == (True, 2)
    assert_close(world.runner.pass_logits["own"], expected)


def test_the_device_computes_what_it_has_even_if_the_host_might(
    world: ColdWorld, assist: FakeAssist
) -> None:
    own = chunk("own", "all")
    world.copy("all").give(NUM_LAYERS)
    output = world.step(everything(own, may_assist=True)).cold["own"]
    assert (output.num_host_layers, output.host_ms, assist.asked) == (0, 0.0, [])


def test_a_pass_that_is_listed_no_longer_is_given_up_and_can_begin_anew(world: ColdWorld) -> None:
    own, other = chunk("own", "all"), chunk("other", "all", 1)
    expected = world.resident_logits(other)
    copy = world.copy("all")
    copy.give()
    world.step(everything(own), everything(other))
    assert passes_alive() == 2
    world.step(everything(other))
    assert passes_alive() == 1
    world.step(everything(own), everything(other))
    copy.give(NUM_LAYERS)
    output = world.step(everything(own), everything(other))
    assert all(each.is_done for each in output.cold.values())
    assert torch.equal(world.runner.pass_logits["other"], expected)


def test_another_chunk_of_the_same_request_is_another_pass(world: ColdWorld) -> None:
    copy = world.copy("all")
    world.step(everything(chunk("own", "all")))
    shorter = chunk("own", "all", length=5)
    expected = world.resident_logits(shorter)
    copy.give(NUM_LAYERS)
    world.step(everything(shorter))
    assert torch.equal(world.runner.pass_logits["own"], expected)


def test_what_a_forward_pass_raises_breaks_the_step_and_leaves_nothing_behind(
    world: ColdWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, main = chunk("own", "all"), (chunk("d", "all", 1),)
    expected = world.step(main=main).token_ids.tolist()
    copy = world.copy("all")
    world.step(everything(own), everything(chunk("other", "all", 2)))
    copy.give(NUM_LAYERS)

    def fail(*_: object) -> Tensor:
        raise RuntimeError("a kernel failed")

    with monkeypatch.context() as patched:
        patched.setattr("loraplex.engine.runner._StepAttention.attend", fail)
        with pytest.raises(RuntimeError, match="a kernel failed"):
            world.step(everything(own), everything(chunk("other", "all", 2)))
    world.runner.abandon()
    assert passes_alive() == 0
    assert world.step(main=main).token_ids.tolist() == expected


def test_numbers_that_are_not_finite_fail_the_request_of_the_pass_alone(world: ColdWorld) -> None:
    own, main = chunk("own", "all"), (chunk("d", "all", 1),)
    copy = world.copy("all")
    copy.poison_host(all_of_it=True)
    copy.give(NUM_LAYERS)
    output = world.step(everything(own), main=main)
    assert output.cold["own"].is_done
    assert output.failures.keys() == {"own"}


def test_a_pass_draws_as_its_chunk_says(world: ColdWorld) -> None:
    sample = replace(GREEDY, num_top_logprobs=2, logit_bias=((7, 1000.0),))
    world.copy("all").give(NUM_LAYERS)
    output = world.step(everything(chunk("own", "all", sample=sample)))
    assert output.cold["own"].token_id == 7
    assert len(output.logprobs["own"].top) == 2


def test_a_function_that_will_not_end_at_its_rest_ends_at_the_next() -> None:
    rests: list[int] = []

    def stubborn() -> None:
        try:
            turns.rest()
        finally:
            rests.append(1)
            turns.rest()

    turns = Turns(stubborn, "cold-pass")
    turns.go_on()
    turns.give_up()
    assert (rests, passes_alive()) == ([1], 0)


def test_a_function_that_has_not_begun_never_does() -> None:
    turns = Turns(lambda: pytest.fail("it was given up"), "cold-pass")
    turns.give_up()
    assert (turns.is_begun, passes_alive()) == (False, 0)


class Slot:
    """Memory that somebody else is to have."""


@pytest.mark.parametrize("how", ["given up", "fails", "never begins"])
def test_what_a_function_holds_is_free_as_soon_as_it_has_ended(how: str) -> None:
    slot = Slot()
    held = weakref.ref(slot)

    def hold(mine: Slot) -> None:
        turns.rest()
        raise ValueError(mine)

    turns = Turns(partial(hold, slot), "cold-pass")
    del slot
    gc.disable()
    try:
        if how != "never begins":
            turns.go_on()
        if how == "fails":
            with suppress(ValueError):
                turns.go_on()
        else:
            turns.give_up()
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("is_done", [True, False])
def test_nothing_is_left_of_a_pass_that_has_ended(world: ColdWorld, *, is_done: bool) -> None:
    copy = world.copy("all")
    copy.give()
    world.step(everything(chunk("own", "all")))
    ((_, begun),) = world.runner._passes._under_way.values()
    cold_pass = weakref.ref(begun.cold_pass)
    del begun
    copy.give(NUM_LAYERS)
    gc.disable()
    try:
        if is_done:
            assert world.step(everything(chunk("own", "all"))).cold["own"].is_done
        else:
            world.step()
        assert cold_pass() is None
    finally:
        gc.enable()


def test_what_groups_hold_of_one_forward_pass_is_hidden_from_another(world: ColdWorld) -> None:
    lora = world.runner._lora
    group = lora.groups[0]
    held = torch.ones(1), torch.ones(1)
    group.held = held
    left = lora.exchange(Turn())
    assert (group.held, left.held) == (None, ((group, held),))
    assert lora.exchange(left) == Turn()
    assert group.held is held
    group.held = None
