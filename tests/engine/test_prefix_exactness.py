"""What is found in the prefix cache is as good as computed: transformers and PEFT say the same."""

from pathlib import Path

import pytest
from tests import tiny_models
from tests.engine.alone import (
    MIN_MARGIN,
    NUM_TOKENS,
    Alone,
    alone_with_margin,
    generate_alone,
    load_adapters,
)
from tests.engine.architectures import ARCHITECTURES
from tests.engine.model_world import ModelWorld
from torch import nn

from loraplex.adapters.storage import AdapterStore
from loraplex.engine.config import ModelConfig
from loraplex.engine.model import load_model
from loraplex.engine.runner import ModelRunner

NUM_BLOCKS = 64


@pytest.fixture(scope="session", params=ARCHITECTURES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return tiny_models.save_model(folder, ARCHITECTURES[request.param].config)


def make_runner(folder: Path) -> ModelRunner:
    return ModelRunner(load_model(ModelConfig(folder, "tiny", "cpu", "float32")), NUM_BLOCKS, 4)


def next_turn(model: nn.Module, alone: Alone) -> Alone:
    """The same with the answer and a few tokens more, chosen so that rounding changes nothing."""
    for first in range(2, 300):
        turn = generate_alone(model, (*alone.prompt, *alone.tokens, first, 5, 17))
        if turn.margin > MIN_MARGIN:
            return turn
    raise AssertionError("no continuation has a margin")


def test_a_prompt_that_is_found_and_its_next_turn_equal_each_alone(folder: Path) -> None:
    model = tiny_models.load_reference(folder)
    alone = alone_with_margin(model, 21)
    turn = next_turn(model, alone)
    world = ModelWorld(make_runner(folder), num_blocks=NUM_BLOCKS, max_step_tokens=6)
    for request_id, expected in (("cold", alone), ("warm", alone), ("next turn", turn)):
        world.add(request_id, expected.prompt, NUM_TOKENS)
        world.run()
        assert world.tokens[request_id] == expected.tokens
    # Of 29 tokens the 25 before the answer's last were computed by then.
    assert [world.cached(name) for name in ("cold", "warm", "next turn")] == [0, 20, 24]


@pytest.mark.parametrize("folder", ["Llama", "Gemma 2"], indirect=True)
def test_prompts_that_begin_alike_in_one_batch_equal_each_alone(folder: Path) -> None:
    """Two that compute the same at once, one that is aborted halfway, one that finds what they
    left, with too few blocks for all."""
    model = tiny_models.load_reference(folder)
    alone = alone_with_margin(model, 21)
    turn = next_turn(model, alone)
    world = ModelWorld(make_runner(folder), num_blocks=14, max_step_tokens=10)
    world.add("aborted", turn.prompt, NUM_TOKENS)
    world.step()
    world.scheduler.abort("aborted", now=0.0)
    for name, expected in (("a", alone), ("b", alone), ("c", turn), ("d", alone)):
        world.add(name, expected.prompt, NUM_TOKENS)
    world.run()
    assert world.cached("a") == 8
    for name, expected in (("a", alone), ("b", alone), ("c", turn), ("d", alone)):
        assert world.tokens[name] == expected.tokens, name


@pytest.mark.parametrize("folder", ["Llama", "Qwen2"], indirect=True)
def test_the_same_prompt_on_each_adapter_and_of_each_tenant_equals_peft_alone(
    folder: Path, tmp_path: Path
) -> None:
    kinds = ["q_proj", "k_proj", "v_proj", "up_proj"]
    folders = {
        name: tiny_models.save_adapter(
            tmp_path / name, folder, seed, r=4, lora_alpha=8, target_modules=kinds
        )
        for seed, name in enumerate(("red", "blue"))
    }
    runner = make_runner(folder)
    adapters = load_adapters(runner.model, folders, AdapterStore(tmp_path / "store"))
    models = {
        name: tiny_models.load_reference(folder, path)
        for name, path in {**folders, None: None}.items()
    }
    prompt = next(
        alone.prompt
        for length in range(17, 60)
        if (alone := alone_with_margin(models[None], length)).margin > MIN_MARGIN
        and all(generate_alone(m, alone.prompt).margin > MIN_MARGIN for m in models.values())
    )
    expected = {name: generate_alone(model, prompt).tokens for name, model in models.items()}
    assert len({tuple(tokens) for tokens in expected.values()}) == 3, "an adapter changes nothing"
    world = ModelWorld(runner, adapters, num_blocks=NUM_BLOCKS)
    users = [("red", "tenant"), ("blue", "tenant"), (None, "tenant"), (None, "other")]
    found = []
    for turn in range(2):
        for adapter, tenant in users:
            name = f"{adapter} of {tenant}, {turn}"
            world.add(name, prompt, NUM_TOKENS, adapter=adapter, tenant=tenant)
            world.run()
            assert world.tokens[name] == expected[adapter], name
            found.append(world.cached(name))
    num_found = (len(prompt) - 1) // 4 * 4
    assert found == [0] * 4 + [num_found] * 4


@pytest.mark.parametrize("folder", ["Mistral"], indirect=True)
def test_a_preempted_request_that_finds_itself_again_equals_one_alone(folder: Path) -> None:
    model = tiny_models.load_reference(folder)
    prompts = {name: alone_with_margin(model, length) for name, length in (("a", 11), ("b", 9))}
    runner = make_runner(folder)
    expected = {}
    for name, alone in prompts.items():
        world = ModelWorld(runner, num_blocks=NUM_BLOCKS, prefix_cache=False)
        world.add(name, alone.prompt, 24)
        world.run()
        expected[name] = world.tokens[name]
        assert expected[name][:NUM_TOKENS] == alone.tokens
    world = ModelWorld(runner, num_blocks=12, max_step_tokens=8)
    for name, alone in prompts.items():
        world.add(name, alone.prompt, 24)
    world.run()
    assert any(plan.num_preempted for plan in world.plans)
    assert world.tokens == expected
