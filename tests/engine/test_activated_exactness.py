"""What activated adapters compute in mixed batches equals what transformers and PEFT compute."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests import tiny_models
from tests.engine.alone import (
    MIN_MARGIN,
    NUM_TOKENS,
    Alone,
    alone_with_margin,
    generate_alone,
    load_adapters,
)
from tests.engine.model_world import ModelWorld
from torch import nn

from loraplex.adapters.storage import AdapterStore
from loraplex.engine.config import ModelConfig
from loraplex.engine.model import load_model
from loraplex.engine.runner import ModelRunner

NUM_BLOCKS = 80
CALLS = {"red": (7, 31), "blue": (11,)}
"""The invocations of two adapters."""
KINDS = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "lm_head"]


@dataclass(frozen=True)
class Case:
    """A request, and what PEFT's `generate` gives for it alone."""

    adapter: str | None
    start: int
    alone: Alone


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return tiny_models.save_model(folder, tiny_models.llama_config())


@pytest.fixture(scope="session")
def adapter_folders(folder: Path) -> dict[str, Path]:
    plain = tiny_models.save_adapter(
        folder.parent / "plain", folder, 9, r=3, lora_alpha=5, target_modules=KINDS
    )
    activated = {
        name: tiny_models.save_adapter(
            folder.parent / name,
            folder,
            seed,
            r=4,
            lora_alpha=8,
            target_modules=KINDS,
            alora_invocation_tokens=list(call),
        )
        for seed, (name, call) in enumerate(CALLS.items())
    }
    return {"plain": plain, **activated}


@pytest.fixture(scope="session")
def references(folder: Path, adapter_folders: dict[str, Path]) -> dict[str | None, nn.Module]:
    paths = {None: None, **adapter_folders}
    return {name: tiny_models.load_reference(folder, path) for name, path in paths.items()}


@torch.no_grad()
def generate(model: nn.Module, prompt: tuple[int, ...], start: int | None = None) -> Alone:
    """With a cache, as PEFT serves an activated adapter: it looks for the invocation once, in the
    prompt, unless it is told from where on to act."""
    offsets = {} if start is None else {"alora_offsets": [len(prompt) - start]}
    made = model.generate(
        input_ids=torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        eos_token_id=None,
        return_dict_in_generate=True,
        output_logits=True,
        **offsets,
    )
    tokens = made.sequences[0, len(prompt) :].tolist()
    return Alone(prompt, tokens, torch.cat(made.logits).float())


def activated(
    model: nn.Module, before: tuple[int, ...], call: tuple[int, ...], seed: int
) -> tuple[int, Alone]:
    """A prompt of `before`, a call and some more tokens, whose continuation has a margin, and would
    be another if the adapter acted from one token before or after on; and where it does begin."""
    generator, start = torch.Generator().manual_seed(seed), len(before)
    for _ in range(500):
        after = tuple(torch.randint(40, 320, (4,), generator=generator).tolist())
        alone = generate(model, (*before, *call, *after))
        beside = [other for other in (start - 1, start + 1) if other >= 0]
        if alone.margin > MIN_MARGIN and all(
            generate(model, alone.prompt, other).tokens != alone.tokens for other in beside
        ):
            return start, alone
    raise AssertionError("no prompt shows where the adapter begins to act")


@pytest.fixture(scope="session")
def cases(references: dict[str | None, nn.Module]) -> dict[str, Case]:
    """All begin with the same 14 tokens."""
    generator = torch.Generator().manual_seed(1)
    common = tuple(torch.randint(40, 320, (14,), generator=generator).tolist())
    found = {
        "base": Case(None, 0, alone_with_margin(references[None], 13)),
        "plain": Case("plain", 0, alone_with_margin(references["plain"], 17)),
    }
    for name, call in CALLS.items():
        model = references[name]
        start, alone = activated(model, common, call, 2)
        found[name] = Case(name, start, alone)
        twice = (*call, *common, 50, *common[:5])
        start, alone = activated(model, twice, call, 3)
        found[f"{name}, called twice"] = Case(name, start, alone)
        start, alone = activated(model, (), call, 4)
        found[f"{name}, called at once"] = Case(name, start, alone)
    return found


def make_runner(folder: Path, num_host_blocks: int = 0) -> ModelRunner:
    model = load_model(ModelConfig(folder, "tiny", "cpu", "float32"))
    return ModelRunner(model, NUM_BLOCKS, 4, num_host_blocks=num_host_blocks)


@pytest.mark.parametrize(
    "config",
    [
        {"max_step_tokens": 64, "num_blocks": NUM_BLOCKS},
        {"max_step_tokens": 5, "num_blocks": NUM_BLOCKS, "prefix_cache": False},
        {"max_step_tokens": 16, "num_blocks": 16},
        {
            "max_step_tokens": 16,
            "num_blocks": 16,
            "num_host_blocks": 16,
            "copy_ms_per_block": 0.01,
            "prefix_cache": False,
        },
    ],
    ids=["roomy", "chunks", "preemption", "swapping"],
)
def test_activated_adapters_equal_peft_alone_beside_plain_ones_and_base_rows(
    folder: Path,
    adapter_folders: dict[str, Path],
    cases: dict[str, Case],
    tmp_path: Path,
    config: dict[str, object],
) -> None:
    runner = make_runner(folder, num_host_blocks=16)
    adapters = load_adapters(runner.model, adapter_folders, AdapterStore(tmp_path))
    world = ModelWorld(runner, adapters, max_running=len(cases), **config)
    for name, case in cases.items():
        world.add(
            name, case.alone.prompt, NUM_TOKENS, adapter=case.adapter, adapter_start=case.start
        )
    world.run()
    assert world.tokens == {name: case.alone.tokens for name, case in cases.items()}
    mixed = max(plan.num_adapters for plan in world.plans)
    assert mixed >= 2
    if config["num_blocks"] == 16:
        assert any(plan.num_preempted for plan in world.plans)
        assert any(plan.copies_in for plan in world.plans) is ("num_host_blocks" in config)


def test_what_the_base_computed_serves_activated_adapters_as_if_they_had_computed_it(
    folder: Path, adapter_folders: dict[str, Path], cases: dict[str, Case], tmp_path: Path
) -> None:
    runner = make_runner(folder)
    adapters = load_adapters(runner.model, adapter_folders, AdapterStore(tmp_path))
    world = ModelWorld(runner, adapters, num_blocks=NUM_BLOCKS, max_step_tokens=16)
    world.add("base", cases["red"].alone.prompt, NUM_TOKENS)
    world.run()
    for name in ("red", "blue"):
        case = cases[name]
        for turn, num_found in ((0, 12), (1, (len(case.alone.prompt) - 1) // 4 * 4)):
            request = f"{name}, {turn}"
            world.add(
                request, case.alone.prompt, NUM_TOKENS, adapter=name, adapter_start=case.start
            )
            world.run()
            assert world.tokens[request] == case.alone.tokens
            assert world.cached(request) == num_found


def test_an_adapter_that_is_not_called_never_acts_whatever_is_generated(
    folder: Path, references: dict[str | None, nn.Module], tmp_path: Path
) -> None:
    """PEFT looks for the invocation in the prompt alone, so such requests are the base model's."""
    base = alone_with_margin(references[None], 12)
    call = base.tokens[:1]
    adapter = tiny_models.save_adapter(
        tmp_path / "own", folder, 3, r=4, target_modules=KINDS, alora_invocation_tokens=call
    )
    assert call[0] not in base.prompt
    assert generate(tiny_models.load_reference(folder, adapter), base.prompt).tokens == base.tokens
    assert generate_alone(references[None], base.prompt).tokens == base.tokens
