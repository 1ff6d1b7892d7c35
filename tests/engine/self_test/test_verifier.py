"""An adapter's first requests, compared with PEFT and with the plain computation."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests import tiny_models
from tests.engine.self_test.world import BLOCK_SIZE, NUM_BLOCKS, Options, running

from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.config import ModelConfig
from loraplex.engine.model import load_model
from loraplex.engine.runner import ModelRunner
from loraplex.kernels.lora_cpu import CpuLora


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return tiny_models.save_model(folder, tiny_models.llama_config())


@pytest.fixture(scope="module")
def runner(model_folder: Path, compiled_lora: CpuLora) -> ModelRunner:
    config = ModelConfig(model_folder, "tiny", "cpu", "float32")
    return ModelRunner(load_model(config), NUM_BLOCKS, BLOCK_SIZE, compiled_lora)


@pytest.fixture(scope="module")
def adapter(model_folder: Path) -> Path:
    return tiny_models.save_adapter(
        model_folder.parent / "adapter",
        model_folder,
        r=8,
        lora_alpha=12,
        target_modules="all-linear",
    )


def doubled(weights: AdapterWeights) -> AdapterWeights:
    pairs = {path: replace(pair, scale=2 * pair.scale) for path, pair in weights.pairs.items()}
    return replace(weights, pairs=pairs)


@pytest.mark.parametrize("method", ["peft", "reference"])
async def test_an_adapter_that_is_served_right_passes(
    runner: ModelRunner, adapter: Path, tmp_path: Path, method: str
) -> None:
    async with running(runner, tmp_path) as world:
        report = await world.verify(adapter, may_use_peft=method == "peft")
    assert report.passed, report
    assert (report.method, report.detail) == (method, "")
    assert report.num_tokens == 24
    assert report.num_compared > 12
    assert report.max_abs_logprob_diff <= report.tolerance < 0.01
    assert report.changes_output
    assert ("peft" in report.versions) == (method == "peft")


@pytest.mark.parametrize("method", ["peft", "reference"])
async def test_an_adapter_that_is_served_at_another_scale_is_found(
    runner: ModelRunner, adapter: Path, tmp_path: Path, method: str
) -> None:
    async with running(runner, tmp_path, Options(spoil=doubled)) as world:
        report = await world.verify(adapter, may_use_peft=method == "peft")
        text = world.metrics()
    assert not report.passed
    assert report.method == method
    assert report.max_abs_logprob_diff > report.tolerance
    assert "as served" in report.detail
    assert f'loraplex_self_tests_total{{method="{method}",result="mismatch"}} 1.0' in text
