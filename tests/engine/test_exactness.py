"""What a packed batch computes equals what transformers and PEFT compute for one request alone."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests import tiny_models
from tests.engine.alone import NUM_TOKENS, alone_with_margin, assert_equals, load_adapters
from tests.engine.packed_greedy import Request, generate
from torch import Tensor

from loraplex.adapters.checkpoint import read_config
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.storage import AdapterStore
from loraplex.adapters.targets import ranks, scales
from loraplex.engine.config import ModelConfig
from loraplex.engine.model import load_model
from loraplex.engine.runner import ModelRunner
from loraplex.kernels.attention_torch import TorchAttention
from loraplex.kernels.cpu_kernels import CpuKernels

NUM_BLOCKS = 200
ARCHITECTURES = {
    "llama": tiny_models.llama_config(),
    "llama, tied and biased": tiny_models.llama_config(
        tie_word_embeddings=True, attention_bias=True, mlp_bias=True
    ),
    "qwen3": tiny_models.qwen3_config(),
}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ADAPTERS = {
    "all linear": {"r": 8, "lora_alpha": 12, "target_modules": "all-linear"},
    "rank stabilised": {
        "r": 4,
        "lora_alpha": 5,
        "use_rslora": True,
        "target_modules": ["q_proj", "v_proj", "down_proj"],
    },
    "patterns": {
        "r": 3,
        "lora_alpha": 4,
        "target_modules": [*ATTENTION, "up_proj"],
        "rank_pattern": {"v_proj": 16, r"layers\.1\.mlp\.up_proj": 5},
        "alpha_pattern": {r"layers\.[02]\.self_attn\.v_proj": 40, "o_proj": 9},
    },
    "head": {"r": 2, "lora_alpha": 3, "target_modules": ["lm_head"]},
    "head and body": {"r": 33, "lora_alpha": 8, "target_modules": ["lm_head", "gate_proj"]},
    "one layer": {
        "r": 1,
        "lora_alpha": 2,
        "target_modules": ["k_proj", "o_proj"],
        "layers_to_transform": [1],
    },
}

BASE = "base"


@pytest.fixture(scope="session", params=ARCHITECTURES)
def model_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return tiny_models.save_model(folder, ARCHITECTURES[request.param])


@pytest.fixture(scope="session")
def adapter_folders(model_folder: Path) -> dict[str, Path]:
    return {
        name: tiny_models.save_adapter(model_folder.parent / name, model_folder, seed, **config)
        for seed, (name, config) in enumerate(ADAPTERS.items())
    }


def make_runner(
    model_folder: Path, block_size: int, kernels: CpuKernels | None = None
) -> ModelRunner:
    config = ModelConfig(model_folder, "tiny", "cpu", "float32")
    return ModelRunner(load_model(config, kernels), NUM_BLOCKS, block_size)


@pytest.mark.parametrize(("chunk_size", "block_size"), [(1, 4), (5, 1), (16, 16), (100, 3)])
def test_chunked_prompts_beside_decodes_equal_each_sequence_alone(
    model_folder: Path, chunk_size: int, block_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers_called = []
    attend = TorchAttention.attend

    def count(*args: object, **kwargs: object) -> Tensor:
        layers_called.append(1)
        return attend(*args, **kwargs)

    monkeypatch.setattr(TorchAttention, "attend", count)
    runner = make_runner(model_folder, block_size)
    model = tiny_models.load_reference(model_folder)
    alone = {f"{length} tokens": alone_with_margin(model, length) for length in (1, 21, 2, 9)}
    requests = [Request(name, expected.prompt) for name, expected in alone.items()]
    num_steps = generate(
        runner,
        requests,
        NUM_TOKENS,
        chunk_size=chunk_size,
        block_size=block_size,
        num_blocks=NUM_BLOCKS,
    )
    for request in requests:
        assert_equals(request, alone[request.request_id])
    assert len(layers_called) == 3 * num_steps


def test_each_adapter_of_a_mixed_batch_equals_peft_alone(
    model_folder: Path,
    adapter_folders: dict[str, Path],
    tmp_path: Path,
    kernels: CpuKernels | None,
) -> None:
    runner = make_runner(model_folder, 4, kernels)
    loaded = load_adapters(runner.model, adapter_folders, AdapterStore(tmp_path))
    loaded = {key: runner.locate(weights) for key, weights in loaded.items()}
    alone, requests = {}, []
    for name, folder in {**adapter_folders, BASE: None}.items():
        model = tiny_models.load_reference(model_folder, folder)
        adapter = None if name == BASE else AdapterKey("tenant", name)
        for length in (5, 9):
            request_id = f"{name}, {length} tokens"
            alone[request_id] = alone_with_margin(model, length)
            requests.append(Request(request_id, alone[request_id].prompt, adapter))
    generate(
        runner,
        requests,
        NUM_TOKENS,
        chunk_size=6,
        block_size=4,
        num_blocks=NUM_BLOCKS,
        adapters=loaded,
    )
    for request in requests:
        assert_equals(request, alone[request.request_id])


# What a server computes that overlooks one field: the config it would see instead.
OVERLOOKED = {
    "lora_alpha": ("all linear", {"alpha": 8.0}),
    "r": ("all linear", {"rank": 12}),
    "use_rslora": ("rank stabilised", {"use_rslora": False}),
    "rank_pattern": ("patterns", {"rank_pattern": ()}),
    "alpha_pattern": ("patterns", {"alpha_pattern": ()}),
}


@pytest.mark.parametrize("model_folder", ["llama"], indirect=True)
@pytest.mark.parametrize("field", OVERLOOKED)
def test_to_overlook_a_field_of_an_adapter_shows_in_the_output(
    model_folder: Path, adapter_folders: dict[str, Path], tmp_path: Path, field: str
) -> None:
    name, changes = OVERLOOKED[field]
    folders = {name: adapter_folders[name]}
    runner = make_runner(model_folder, 4)
    ((key, right),) = load_adapters(runner.model, folders, AdapterStore(tmp_path)).items()
    config, _ = read_config(adapter_folders[name])
    seen = replace(config, **changes)
    scale_of = scales(seen, ranks(seen, right.pairs))
    wrong = {path: replace(pair, scale=scale_of[path]) for path, pair in right.pairs.items()}
    alone = alone_with_margin(tiny_models.load_reference(model_folder, folders[name]), 9)
    request = Request("a", alone.prompt, key)
    generate(
        runner,
        [request],
        NUM_TOKENS,
        chunk_size=6,
        block_size=4,
        num_blocks=NUM_BLOCKS,
        adapters={key: replace(right, pairs=wrong)},
    )
    assert request.tokens != alone.tokens
