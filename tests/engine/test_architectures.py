"""Each proven architecture equals what transformers and PEFT compute for one request alone."""

from pathlib import Path

import pytest
import torch
from tests import tiny_models
from tests.engine.alone import (
    NUM_TOKENS,
    alone_with_margin,
    assert_equals,
    generate_alone,
    load_adapters,
    relative_error,
)
from tests.engine.architectures import ARCHITECTURES, TOLERANCES
from tests.engine.packed_greedy import Request, generate
from torch import Tensor

from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.storage import AdapterStore
from loraplex.engine.config import ModelConfig
from loraplex.engine.model import load_model
from loraplex.engine.runner import ModelRunner
from loraplex.kernels.attention_torch import TorchAttention
from loraplex.kernels.cpu_kernels import CpuKernels

BLOCKS = {"block_size": 4, "num_blocks": 200}
LENGTHS = (1, 21, 2, 9)  # a window of 8 ends inside the second and the last


@pytest.fixture(scope="session", params=ARCHITECTURES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return tiny_models.save_model(folder, ARCHITECTURES[name].config)


def make_runner(
    folder: Path, dtype: str = "float32", kernels: CpuKernels | None = None
) -> ModelRunner:
    model = load_model(ModelConfig(folder, "tiny", "cpu", dtype), kernels)
    return ModelRunner(model, BLOCKS["num_blocks"], BLOCKS["block_size"])


def test_a_mixed_batch_equals_each_request_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers_called = []
    attend = TorchAttention.attend

    def count(*args: object) -> Tensor:
        layers_called.append(1)
        return attend(*args)

    monkeypatch.setattr(TorchAttention, "attend", count)
    reference = tiny_models.load_reference(folder)
    alone = {f"{length} tokens": alone_with_margin(reference, length) for length in LENGTHS}
    requests = [Request(name, expected.prompt) for name, expected in alone.items()]
    num_steps = generate(make_runner(folder), requests, NUM_TOKENS, chunk_size=5, **BLOCKS)
    for request in requests:
        assert_equals(request, alone[request.request_id])
    assert len(layers_called) == 3 * num_steps


def test_adapters_on_each_kind_of_linear_layer_equal_peft_alone(
    name: str, folder: Path, tmp_path: Path, compiled_kernels: CpuKernels
) -> None:
    kinds = ARCHITECTURES[name].linears
    adapters = {
        "all": {"r": 8, "lora_alpha": 12, "target_modules": [*kinds]},
        "some": {"r": 3, "lora_alpha": 4, "use_rslora": True, "target_modules": [*kinds[::2]]},
    }
    if name == "GPT-2":  # PEFT warns of adapters that do not say so
        adapters = {adapter: {**c, "fan_in_fan_out": True} for adapter, c in adapters.items()}
    folders = {
        adapter: tiny_models.save_adapter(tmp_path / adapter, folder, seed, **config)
        for seed, (adapter, config) in enumerate(adapters.items())
    }
    runner = make_runner(folder, kernels=compiled_kernels)
    loaded = load_adapters(runner.model, folders, AdapterStore(tmp_path / "store"))
    loaded = {key: runner.locate(weights) for key, weights in loaded.items()}
    alone, requests = {}, []
    for adapter, path in {**folders, "base": None}.items():
        reference = tiny_models.load_reference(folder, path)
        for length in (3, 9):
            request_id = f"{adapter}, {length} tokens"
            alone[request_id] = alone_with_margin(reference, length)
            key = None if path is None else AdapterKey("tenant", adapter)
            requests.append(Request(request_id, alone[request_id].prompt, key))
    generate(runner, requests, NUM_TOKENS, chunk_size=6, adapters=loaded, **BLOCKS)
    for request in requests:
        assert_equals(request, alone[request.request_id])


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_in_half_precision_logits_are_close_to_those_of_each_request_alone(
    name: str, folder: Path, dtype: str
) -> None:
    reference = tiny_models.load_reference(folder, dtype=getattr(torch, dtype))
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(2, 320, (n,), generator=generator).tolist() for n in LENGTHS]
    alone = [generate_alone(reference, tuple(prompt)) for prompt in prompts]
    requests = [Request(f"{a.prompt}", a.prompt) for a in alone]
    generate(make_runner(folder, dtype), requests, NUM_TOKENS, chunk_size=5, **BLOCKS)
    errors = [relative_error(r, a) for r, a in zip(requests, alone, strict=True)]
    assert max(errors) < ARCHITECTURES[name].tolerances[dtype]
