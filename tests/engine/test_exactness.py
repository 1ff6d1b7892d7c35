"""What a packed batch computes equals what transformers and PEFT compute for one request alone."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from tests import tiny_models
from tests.engine.packed_greedy import Request, generate
from torch import Tensor
from transformers import AutoModelForCausalLM

from loraplex.adapters import weights
from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.checkpoint import inspect
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.storage import AdapterStore
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine import runner as runner_module
from loraplex.engine.config import ModelConfig
from loraplex.engine.model import load_model
from loraplex.engine.runner import ModelRunner

NUM_TOKENS = 6
NUM_BLOCKS = 200
MIN_MARGIN = 1e-4  # between the two largest logits: below it float32 may choose either
RTOL = 1e-4  # of the largest logit
ARCHITECTURES = {
    "llama": tiny_models.llama_config(),
    "llama tied": tiny_models.llama_config(tie_word_embeddings=True),
    "llama biased": tiny_models.llama_config(attention_bias=True, mlp_bias=True),
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
        "rank_pattern": {"q_proj": 16, r"layers\.1\.mlp\.up_proj": 5},
        "alpha_pattern": {r"layers\.[02]\.self_attn\.q_proj": 40, "o_proj": 9},
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

Forward = Callable[[list[int]], Tensor]  # token ids -> logits of the last one


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


def make_runner(model_folder: Path, block_size: int) -> ModelRunner:
    config = ModelConfig(model_folder, "tiny", "cpu", "float32")
    return ModelRunner(load_model(config), NUM_BLOCKS, block_size)


def forward_alone(model_folder: Path, adapter_folder: Path | None = None) -> Forward:
    """The plain model, whole sequence at once, no cache."""
    model = AutoModelForCausalLM.from_pretrained(
        model_folder, dtype=torch.float32, attn_implementation="eager"
    )
    if adapter_folder is not None:
        model = PeftModel.from_pretrained(model, adapter_folder)
    model.eval()

    @torch.no_grad()
    def forward(token_ids: list[int]) -> Tensor:
        return model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0, -1]

    return forward


def generate_alone(forward: Forward, prompt: tuple[int, ...]) -> tuple[list[int], list[Tensor]]:
    tokens, logits = [], []
    for _ in range(NUM_TOKENS):
        logits.append(forward([*prompt, *tokens]))
        tokens.append(int(logits[-1].argmax()))
    return tokens, logits


def margin(logits: list[Tensor]) -> float:
    largest = torch.stack(logits).topk(2).values
    return float((largest[:, 0] - largest[:, 1]).min())


def prompt_with_margin(forward: Forward, length: int, seed: int) -> tuple[int, ...]:
    """The first random prompt of this length whose continuation rounding cannot change."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        prompt = tuple(torch.randint(2, 320, (length,), generator=generator).tolist())
        if margin(generate_alone(forward, prompt)[1]) > MIN_MARGIN:
            return prompt


def assert_equals_alone(request: Request, forward: Forward) -> None:
    tokens, logits = generate_alone(forward, request.prompt)
    assert request.tokens == tokens, request.request_id
    expected = torch.stack(logits)
    error = (torch.stack(request.logits) - expected).abs().max() / expected.abs().max()
    assert error < RTOL, request.request_id


def load_adapters(
    model_folder: Path, adapter_folders: Mapping[str, Path], store: AdapterStore
) -> dict[AdapterKey, AdapterWeights]:
    """Through validation and the store, as an upload goes; keyed by the adapter's name."""
    base = BaseShapes.read(model_folder)
    loaded = {}
    for name, folder in adapter_folders.items():
        checkpoint = inspect(folder, base)
        store.put(checkpoint)
        loaded[AdapterKey("tenant", name)] = weights.load(
            store, checkpoint.digest, dtype=torch.float32, device="cpu"
        )
    return loaded


@pytest.mark.parametrize(("chunk_size", "block_size"), [(1, 4), (5, 1), (16, 16), (100, 3)])
def test_chunked_prompts_beside_decodes_equal_each_sequence_alone(
    model_folder: Path, chunk_size: int, block_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers_called = []
    attention = runner_module.paged_attention

    def count(*args: object, **kwargs: object) -> Tensor:
        layers_called.append(1)
        return attention(*args, **kwargs)

    monkeypatch.setattr(runner_module, "paged_attention", count)
    runner = make_runner(model_folder, block_size)
    forward = forward_alone(model_folder)
    requests = [
        Request(f"{length} tokens", prompt_with_margin(forward, length, seed=length))
        for length in (1, 17, 2, 33, 8)
    ]
    num_steps = generate(
        runner,
        requests,
        NUM_TOKENS,
        chunk_size=chunk_size,
        block_size=block_size,
        num_blocks=NUM_BLOCKS,
    )
    for request in requests:
        assert_equals_alone(request, forward)
    assert len(layers_called) == 3 * num_steps


@pytest.mark.parametrize("chunk_size", [6, 100])
def test_each_adapter_of_a_mixed_batch_equals_peft_alone(
    model_folder: Path, adapter_folders: dict[str, Path], tmp_path: Path, chunk_size: int
) -> None:
    loaded = load_adapters(model_folder, adapter_folders, AdapterStore(tmp_path))
    forwards = {
        name: forward_alone(model_folder, adapter_folders[name]) for name in adapter_folders
    }
    forwards["base"] = forward_alone(model_folder)
    requests = [
        Request(
            f"{name} {turn}",
            prompt_with_margin(forward, 5 + 4 * turn, seed=turn),
            None if name == "base" else AdapterKey("tenant", name),
        )
        for turn in range(2)
        for name, forward in forwards.items()
    ]
    generate(
        make_runner(model_folder, 4),
        requests,
        NUM_TOKENS,
        chunk_size=chunk_size,
        block_size=4,
        num_blocks=NUM_BLOCKS,
        adapters=loaded,
    )
    for request in requests:
        assert_equals_alone(request, forwards[request.request_id.rpartition(" ")[0]])
