"""Adapters of a mixed batch on a GPU, against PEFT on a CPU."""

from pathlib import Path

import pytest
from tests import tiny_models
from tests.engine.alone import NUM_TOKENS, alone_with_margin, assert_equals, load_adapters
from tests.engine.packed_greedy import Request, generate

from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.storage import AdapterStore
from loraplex.engine.config import ModelConfig
from loraplex.engine.model import load_model
from loraplex.engine.runner import ModelRunner

pytestmark = pytest.mark.gpu

ADAPTERS = {
    "all linear": {"r": 8, "lora_alpha": 12, "target_modules": "all-linear"},
    "head and body": {"r": 33, "lora_alpha": 8, "target_modules": ["lm_head", "gate_proj"]},
    "ranks": {"r": 3, "target_modules": ["v_proj", "o_proj"], "rank_pattern": {"v_proj": 16}},
}


@pytest.mark.parametrize("config", [tiny_models.llama_config(), tiny_models.qwen3_config()])
def test_each_adapter_of_a_mixed_batch_equals_peft_alone(tmp_path: Path, config: object) -> None:
    model = tiny_models.save_model(tmp_path / "tiny", config)
    folders = {
        name: tiny_models.save_adapter(tmp_path / name, model, seed, **adapter)
        for seed, (name, adapter) in enumerate(ADAPTERS.items())
    }
    loaded_model = load_model(ModelConfig(model, "tiny", "cuda", "float32"))
    runner = ModelRunner(loaded_model, num_blocks=100, block_size=4)
    loaded = load_adapters(runner.model, folders, AdapterStore(tmp_path / "store"))
    alone, requests = {}, []
    for name, folder in {**folders, "base": None}.items():
        adapter = None if folder is None else AdapterKey("tenant", name)
        alone[name] = alone_with_margin(tiny_models.load_reference(model, folder), 9)
        requests.append(Request(name, alone[name].prompt, adapter))
    generate(
        runner,
        requests,
        NUM_TOKENS,
        chunk_size=6,
        block_size=4,
        num_blocks=100,
        adapters={key: runner.locate(weights) for key, weights in loaded.items()},
    )
    for request in requests:
        assert_equals(request, alone[request.request_id])
