"""A pass on an adapter that is on its way computes what a step on a resident one does."""

from collections.abc import Iterator
from pathlib import Path

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

from loraplex.engine.plan import Chunk, ColdChunk
from loraplex.kernels.cpu_kernels import CpuKernels

FORMS = (
    "Llama",
    "Qwen2",
    "Qwen3",
    "Gemma 2",
    "Gemma 3 (text)",
    "Phi-3",
    "GPT-2",
    "OLMo 2",
    "Mixtral",
)


@pytest.fixture(scope="module", params=["torch", "compiled"])
def kernels(request: pytest.FixtureRequest) -> CpuKernels | None:
    if request.param == "torch":
        return None
    found: CpuKernels = request.getfixturevalue("compiled_kernels")
    return found


@pytest.fixture(scope="module", params=FORMS)
def world(
    request: pytest.FixtureRequest,
    kernels: CpuKernels | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ColdWorld]:
    folder = tmp_path_factory.mktemp("world")
    model = make_model(folder, request.param, kernels)
    architecture = ARCHITECTURES[request.param]
    of_all = options_of(architecture)
    of_last = {**of_all, "target_modules": architecture.linears[-2:], "layers_to_transform": [2]}
    del of_last["r"]
    world = make_world(
        folder,
        model,
        {"all": of_all, "few": options_of(architecture, with_head=False) | {"r": 7}},
        FakeAssist(widths(model)),
    )
    yield world
    world.close()


@pytest.fixture(autouse=True)
def _begun_anew(world: ColdWorld) -> Iterator[None]:
    yield
    world.close()
    world.copies.clear()
    world.runner.pass_logits.clear()


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert torch.isfinite(found).all()
    assert (found - expected).abs().max() <= RTOL * expected.abs().max()


def test_layer_by_layer_the_logits_are_those_of_a_resident_adapter_bit_by_bit(
    world: ColdWorld,
) -> None:
    own = chunk("own", "all")
    expected = world.resident_logits(own)
    copy = world.copy("all")
    outputs = []
    while not outputs or not outputs[-1].is_done:
        outputs.append(world.step(everything(own)).cold["own"])
        if not outputs[-1].is_done:
            assert outputs[-1].num_layers == copy.progress.num_layers
            copy.give()
            copy.poison_host()
    assert len(outputs) == copy.num_layers + 1
    assert torch.equal(world.runner.pass_logits["own"], expected)
    assert outputs[-1].token_id == expected.argmax()
    assert (outputs[-1].num_layers, outputs[-1].num_host_layers) == (copy.num_layers, 0)
