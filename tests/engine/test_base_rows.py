"""Requests to the base model, beside adapters that do more than low-rank updates."""

from pathlib import Path

import pytest
import torch
from tests import tiny_models
from tests.engine.alone import load_adapters
from tests.engine.fidelity_cases import CASES, MODELS, NUM_TOKENS
from tests.engine.packed_greedy import GREEDY, plan_of
from tests.engine.trained import save_trained

from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.storage import AdapterStore
from loraplex.engine.config import ModelConfig
from loraplex.engine.model import load_model
from loraplex.engine.plan import Chunk
from loraplex.engine.runner import ModelRunner
from loraplex.kernels.cpu_kernels import CpuKernels

BASE = Chunk("base", None, (5, 6, 7), 0, (0,), GREEDY)
BESIDE = {
    "untied": [
        "use_dora with bias",
        "modules_to_save both",
        "embed_tokens",
        "trainable_token_indices of both",
        "added vocabulary",
    ],
    "tied": ["ensure_weight_tying with targets", "tied trainable_token_indices"],
    "gpt2": ["bias all on gpt2, norms too", "wte and wpe"],
    "scaled": ["scaled embed_tokens", "use_dora on scaled embed_tokens"],
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", BESIDE)
def test_no_adapter_changes_a_bit_of_the_rows_of_the_base_model(
    name: str, dtype: str, tmp_path: Path, compiled_kernels: CpuKernels
) -> None:
    folder = tiny_models.save_model(tmp_path / "model", MODELS[name])
    folders = {
        field: save_trained(
            tmp_path / str(seed),
            folder,
            seed,
            num_tokens=CASES[field].num_tokens,
            **CASES[field].config,
        )
        for seed, field in enumerate(BESIDE[name])
    }
    model = load_model(ModelConfig(folder, "tiny", "cpu", dtype), compiled_kernels)
    runner = ModelRunner(model, 16, 4)
    adapters = load_adapters(model, folders, AdapterStore(tmp_path / "store"))
    adapters = {key: runner.locate(weights) for key, weights in adapters.items()}
    keys = [AdapterKey("tenant", field) for field in folders]

    def logits(chosen: list[AdapterKey | None]) -> torch.Tensor:
        others = [
            Chunk(f"{place}", key, (8, 9), 0, (place,), GREEDY)
            for place, key in enumerate(chosen, 1)
        ]
        plan = plan_of([BASE, *others])
        return runner.logits(runner.build(plan, adapters))

    beside = logits([*keys])
    alone = logits([None] * len(keys))
    assert torch.equal(beside[0, :NUM_TOKENS], alone[0])
    assert not torch.equal(beside[1:, :NUM_TOKENS], alone[1:])
