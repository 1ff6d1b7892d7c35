"""A request that was copied to the host and back gives what an uninterrupted one gives."""

from pathlib import Path

import pytest
import torch
from tests import tiny_models
from tests.engine.alone import NUM_TOKENS, alone_with_margin
from tests.engine.architectures import ARCHITECTURES
from tests.engine.model_world import ModelWorld

from loraplex.engine.config import ModelConfig
from loraplex.engine.model import load_model
from loraplex.engine.plan import BlockCopy, StepPlan
from loraplex.engine.runner import ModelRunner


@pytest.fixture(scope="session", params=["Llama", "Mistral", "Gemma 2", "GPT-2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return tiny_models.save_model(folder, ARCHITECTURES[request.param].config)


def make_runner(folder: Path, dtype: str = "float32") -> ModelRunner:
    model = load_model(ModelConfig(folder, "tiny", "cpu", dtype))
    return ModelRunner(model, 64, 4, num_host_blocks=16)


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_swapped_requests_equal_uninterrupted_ones(folder: Path, prefix_cache: bool) -> None:
    reference = tiny_models.load_reference(folder)
    prompts = {name: alone_with_margin(reference, length) for name, length in (("a", 11), ("b", 9))}
    runner = make_runner(folder)
    expected = {}
    for name, alone in prompts.items():
        world = ModelWorld(runner, num_blocks=64, prefix_cache=False)
        world.add(name, alone.prompt, 24)
        world.run()
        expected[name] = world.tokens[name]
        assert expected[name][:NUM_TOKENS] == alone.tokens
    world = ModelWorld(
        runner,
        num_blocks=12,
        num_host_blocks=16,
        copy_ms_per_block=0.01,
        prefix_cache=prefix_cache,
    )
    for name, alone in prompts.items():
        world.add(name, alone.prompt, 24)
    world.run()
    assert any(plan.copies_out for plan in world.plans)
    assert any(plan.copies_in for plan in world.plans)
    assert world.tokens == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("folder", ["Llama"], indirect=True)
def test_blocks_come_back_bit_by_bit_in_other_places(folder: Path, dtype: str) -> None:
    runner = make_runner(folder, dtype)
    for cache in runner._caches:
        for pool in cache:
            pool.copy_(torch.randn(pool.shape))
            pool[-1] = 0
    before = [pool.clone() for cache in runner._caches for pool in cache]
    runner.copy(
        StepPlan(
            1,
            copies_out=(BlockCopy("a", (3, 0, 7), (5, 15, 0)), BlockCopy("b", (9,), (1,))),
            # Block 3 is read before it is written to.
            copies_in=(BlockCopy("c", (3, 8), (1, 5)),),
        )
    )
    places = list(range(65))
    places[3], places[8] = 9, 3
    for pool, old in zip((p for cache in runner._caches for p in cache), before, strict=True):
        assert torch.equal(pool, old[places])


@pytest.mark.parametrize("folder", ["Llama"], indirect=True)
def test_the_time_of_a_copy_is_measured_where_there_is_a_host_pool(folder: Path) -> None:
    assert make_runner(folder).measure_copy_ms() > 0
    model = load_model(ModelConfig(folder, "tiny", "cpu", "float32"))
    assert ModelRunner(model, 16, 4).measure_copy_ms() == 0
