"""A pass on an adapter that is on its way computes what a step on a resident one does.

A slot of the device is NaN until its layer has come, and here the host's copy of a layer is NaN as
soon as it has: so finite logits tell who has read what.
"""

from collections.abc import Iterator
from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.alone import RTOL
from tests.engine.architectures import ARCHITECTURES
from tests.engine.cold_world import (
    ColdWorld,
    chunk,
    everything,
    make_model,
    make_world,
    options_of,
    widths,
)
from tests.engine.fake_assist import FakeAssist
from torch import Tensor

from loraplex.engine.plan import ColdChunk, ColdOutput
from loraplex.kernels.cpu_kernels import CpuKernels

FORMS = (
    *("Llama", "Qwen2", "Qwen3", "Gemma 2", "Gemma 3 (text)"),
    *("Phi-3", "GPT-2", "OLMo 2", "Mixtral"),
)
NEXT = 21
"""Position after the prompts."""


@pytest.fixture(scope="module", params=["torch", "compiled"])
def kernels(request: pytest.FixtureRequest) -> CpuKernels | None:
    if request.param == "torch":
        return None
    found: CpuKernels = request.getfixturevalue("compiled_kernels")
    return found


@pytest.fixture(scope="module", params=FORMS)
def shared_world(
    request: pytest.FixtureRequest,
    kernels: CpuKernels | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> ColdWorld:
    folder = tmp_path_factory.mktemp("world")
    model = make_model(folder, request.param, kernels)
    of_all = options_of(ARCHITECTURES[request.param])
    of_few = {**of_all, "target_modules": [of_all["target_modules"][1]], "r": 7}
    assist = FakeAssist(widths(model))
    return make_world(folder, model, {"all": of_all, "few": of_few}, assist)


@pytest.fixture
def world(shared_world: ColdWorld) -> Iterator[ColdWorld]:
    yield shared_world
    shared_world.clear()


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert torch.isfinite(found).all()
    assert (found - expected).abs().max() <= RTOL * expected.abs().max()


def test_layer_by_layer_logits_and_cache_are_those_of_a_resident_adapter_bit_by_bit(
    world: ColdWorld,
) -> None:
    own, after = chunk("own", "all"), chunk("own", "all", start=NEXT, length=1)
    expected, expected_after = world.resident_logits(own), world.resident_logits(after)
    copy = world.copy("all")
    world.forget_cache()
    outputs = []
    while not outputs or not outputs[-1].is_done:
        outputs.append(world.step(everything(own)).cold["own"])
        if not outputs[-1].is_done:
            assert outputs[-1].num_layers == copy.progress.num_layers
            copy.give()
            copy.poison_host()
    assert len(outputs) == copy.num_layers + 1
    assert torch.equal(world.runner.pass_logits["own"], expected)
    token_id = int(expected.argmax())
    assert outputs[-1] == ColdOutput(copy.num_layers, is_done=True, token_id=token_id, part=1.0)
    assert torch.equal(world.resident_logits(after), expected_after)


def test_with_an_assist_alone_the_device_is_never_read(world: ColdWorld) -> None:
    for adapter in ("all", "few"):
        own = chunk("own", adapter)
        expected = world.resident_logits(own)
        copy = world.copy(adapter)
        output = world.step(everything(own, may_assist=True)).cold["own"]
        assert output.is_done
        assert (output.num_layers, output.num_host_layers) == (copy.num_layers, copy.num_layers)
        assert copy.progress.num_layers == 0
        assert_close(world.runner.pass_logits["own"], expected)


class Race:
    """Three passes on two adapters, beside steps of others, in an order that is drawn."""

    def __init__(self, world: ColdWorld, data: st.DataObject) -> None:
        self.world, self.data = world, data
        self.open = {
            "a": chunk("a", "all", 0),
            "b": chunk("b", "few", 1, start=6, length=15),
            "c": chunk("c", "all", 2, length=5),
        }
        self.main = (
            chunk("d", None, 3),
            chunk("e", "all", 4, start=9, length=1),
            chunk("f", "few", 5),
        )
        for begun in (chunk("b", "few", 1, length=6), chunk("e", "all", 4, length=9)):
            world.resident_logits(begun)
        self.expected = {name: world.resident_logits(each) for name, each in self.open.items()}
        self.of_main = world.step(main=self.main).token_ids.tolist()
        self.copies = [world.copy(name) for name in ("all", "few")]
        self.assisted: set[str] = set()

    def run(self) -> None:
        for turn in count():
            if not self.open:
                return
            self.step(is_late=turn > 8)

    def step(self, *, is_late: bool) -> None:
        for copy in self.copies:
            if is_late or self.data.draw(st.booleans(), label="a layer comes"):
                copy.give()
        cold = [self.cold(name, is_late=is_late) for name in self.open]
        main = self.main if self.data.draw(st.booleans(), label="others run") else ()
        output = self.world.step(*cold, main=main)
        assert not output.failures
        assert output.token_ids.tolist() == (self.of_main if main else [])
        for name, of_pass in output.cold.items():
            if of_pass.num_host_layers:
                self.assisted.add(name)
            if of_pass.is_done:
                assert of_pass.token_id == self.expected[name].argmax()
                del self.open[name]

    def cold(self, name: str, *, is_late: bool) -> ColdChunk:
        until = 99 if is_late else self.data.draw(st.integers(0, 4), label=f"end of {name}")
        may_assist = self.data.draw(st.booleans(), label=f"{name} may be assisted")
        return ColdChunk(self.open[name], until, may_assist)


@settings(max_examples=6)
@given(st.data())
def test_passes_and_steps_in_any_order_compute_what_each_does_alone(
    shared_world: ColdWorld, data: st.DataObject
) -> None:
    try:
        race = Race(shared_world, data)
        race.run()
        for name, logits in shared_world.runner.pass_logits.items():
            assert_close(logits, race.expected[name])
            assert name in race.assisted or torch.equal(logits, race.expected[name])
    finally:
        shared_world.clear()
