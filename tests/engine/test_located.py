"""Steps by compiled kernels, those of GPUs interpreted: tables go through the whole model."""

from pathlib import Path

import pytest
import torch
from tests import tiny_models
from tests.engine.alone import load_adapters
from tests.engine.packed_greedy import GREEDY, plan_of

from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.storage import AdapterStore
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.config import ModelConfig
from loraplex.engine.model import load_model
from loraplex.engine.plan import Chunk
from loraplex.engine.runner import ModelRunner
from loraplex.kernels import lora_triton
from loraplex.kernels.attention import KvLayout
from loraplex.kernels.attention_paged import TritonAttention
from loraplex.kernels.cpu_kernels import CpuKernels
from loraplex.kernels.lora_cpu import CpuModuleSegments
from loraplex.kernels.paged_step import PagedLayout

NUM_LAYERS = 2
ADAPTERS = {
    "first": {"r": 7, "lora_alpha": 9, "target_modules": ["q_proj", "down_proj", "lm_head"]},
    "second": {"r": 2, "lora_alpha": 3, "target_modules": ["v_proj", "down_proj"]},
}
CHUNKS = [
    Chunk("base", None, (5, 6, 7), 0, (0,), GREEDY),
    Chunk("a", AdapterKey("tenant", "first"), (8, 9), 0, (1,), GREEDY),
    Chunk("b", AdapterKey("tenant", "second"), (3,), 0, (2,), GREEDY),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = tiny_models.llama_config(num_hidden_layers=NUM_LAYERS)
    return tiny_models.save_model(tmp_path / "tiny", config)


@pytest.fixture
def runner(folder: Path) -> ModelRunner:
    return make_runner(folder)


def make_runner(folder: Path, kernels: CpuKernels | None = None) -> ModelRunner:
    model = load_model(ModelConfig(folder, "tiny", "cpu", "float32"), kernels)
    return ModelRunner(model, 8, 4)


@pytest.fixture
def adapters(runner: ModelRunner, tmp_path: Path) -> dict[AdapterKey, AdapterWeights]:
    model = tmp_path / "tiny"
    folders = {
        name: tiny_models.save_adapter(tmp_path / name, model, seed, **config)
        for seed, (name, config) in enumerate(ADAPTERS.items())
    }
    return load_adapters(runner.model, folders, AdapterStore(tmp_path / "store"))


def test_located_adapters_compute_what_others_do(
    runner: ModelRunner,
    adapters: dict[AdapterKey, AdapterWeights],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched = []
    add_lora = lora_triton.add_lora_triton

    def count(*args: object) -> None:
        launched.append(1)
        add_lora(*args)

    monkeypatch.setattr(lora_triton, "add_lora_triton", count)
    expected = runner.logits(runner.build(plan_of(CHUNKS), adapters))
    assert not launched
    located = {
        key: runner._lora.locate(weights, torch.float32, torch.device("cpu"))
        for key, weights in adapters.items()
    }
    logits = runner.logits(runner.build(plan_of(CHUNKS), located))
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())
    # q with v, and down, of each layer, and the head: what nobody targets launches nothing.
    assert len(launched) == 2 * NUM_LAYERS + 1


def test_attention_of_gpus_computes_what_torch_does(
    runner: ModelRunner,
    adapters: dict[AdapterKey, AdapterWeights],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = []

    def choose(layout: KvLayout, *_: object, **__: object) -> TritonAttention:
        chosen.append(TritonAttention(PagedLayout(layout.block_size, torch.device("cpu"))))
        return chosen[-1]

    monkeypatch.setattr("loraplex.engine.runner.choose_attention", choose)
    on_gpu = make_runner(folder)
    assert chosen
    steps = [
        CHUNKS,
        [Chunk("a", AdapterKey("tenant", "first"), (4,), 2, (1,), GREEDY)],
        [Chunk("base", None, (1, 2, 3), 3, (0, 4), GREEDY)],
    ]
    for chunks in steps:
        expected, found = (
            each.logits(each.build(plan_of(chunks), adapters)) for each in (runner, on_gpu)
        )
        scale = expected.abs().max().item()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * scale)


def test_the_compiled_kernel_of_cpus_computes_what_torch_does(
    runner: ModelRunner,
    adapters: dict[AdapterKey, AdapterWeights],
    folder: Path,
    compiled_kernels: CpuKernels,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added = []
    add = CpuModuleSegments.add

    def count(at: CpuModuleSegments, y: torch.Tensor, x: torch.Tensor) -> None:
        added.append(at.slices)
        add(at, y, x)

    monkeypatch.setattr(CpuModuleSegments, "add", count)
    long = Chunk("long", AdapterKey("tenant", "first"), (9,) * 9, 0, (3, 4, 5), GREEDY)
    for chunks in (CHUNKS, [*CHUNKS, long]):
        expected = runner.logits(runner.build(plan_of(chunks), adapters))
        assert not added
        compiled = make_runner(folder, compiled_kernels)
        located = {key: compiled.locate(weights) for key, weights in adapters.items()}
        logits = compiled.logits(compiled.build(plan_of(chunks), located))
        scale = expected.abs().max().item()
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5 * scale)
        # q with v, and down, of each layer, and the head.
        assert len(added) == 2 * NUM_LAYERS + 1
        added.clear()
