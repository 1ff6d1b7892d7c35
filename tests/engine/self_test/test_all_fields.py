"""Adapters that do all that PEFT's LoRA can do pass their tests, whichever way they are made."""

from pathlib import Path

import pytest
from tests import tiny_models
from tests.engine.fidelity_cases import CASES, MODELS
from tests.engine.self_test.world import BLOCK_SIZE, NUM_BLOCKS, running
from tests.engine.trained import save_trained

from loraplex.engine.config import ModelConfig
from loraplex.engine.model import load_model
from loraplex.engine.protocol import SelfTest
from loraplex.engine.runner import ModelRunner
from loraplex.kernels.cpu_kernels import CpuKernels

INVOKED = {"r": 4, "target_modules": ["q_proj", "v_proj"], "alora_invocation_tokens": [7, 8, 9]}


@pytest.mark.parametrize(("model", "method"), [("untied", "peft"), ("capped", "peft")])
async def test_each_field_is_seen_in_the_output_and_passes(
    model: str, method: str, compiled_kernels: CpuKernels, tmp_path: Path
) -> None:
    folder = tiny_models.save_model(tmp_path / "model", MODELS[model])
    cases = {
        field: (case.config, case.num_tokens)
        for field, case in CASES.items()
        if case.model == model
    } | {"alora_invocation_tokens": (INVOKED, None)}
    runner = ModelRunner(
        load_model(ModelConfig(folder, "tiny", "cpu", "float32"), compiled_kernels),
        NUM_BLOCKS,
        BLOCK_SIZE,
    )
    reports: dict[str, SelfTest] = {}
    async with running(runner, tmp_path) as world:
        for seed, (field, (config, num_tokens)) in enumerate(cases.items()):
            saved = save_trained(
                tmp_path / str(seed), folder, seed, num_tokens=num_tokens, **config
            )
            reports[field] = await world.verify(saved, may_use_peft=method == "peft")
    assert {f: r for f, r in reports.items() if not (r.passed and r.changes_output)} == {}
    assert {f: r for f, r in reports.items() if r.method != method or r.detail} == {}
