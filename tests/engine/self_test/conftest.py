from pathlib import Path

import pytest
from tests import tiny_models
from tests.engine.self_test.world import BLOCK_SIZE, NUM_BLOCKS

from loraplex.engine.config import ModelConfig
from loraplex.engine.model import load_model
from loraplex.engine.runner import ModelRunner
from loraplex.kernels.cpu_kernels import CpuKernels


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return tiny_models.save_model(folder, tiny_models.llama_config())


@pytest.fixture(scope="session")
def runner(model_folder: Path, compiled_kernels: CpuKernels) -> ModelRunner:
    """Of the tiny model, with compiled kernels."""
    config = ModelConfig(model_folder, "tiny", "cpu", "float32")
    return ModelRunner(load_model(config, compiled_kernels), NUM_BLOCKS, BLOCK_SIZE)


@pytest.fixture(scope="session")
def adapter(model_folder: Path) -> Path:
    return tiny_models.save_adapter(
        model_folder.parent / "adapter",
        model_folder,
        r=8,
        lora_alpha=12,
        target_modules="all-linear",
    )


@pytest.fixture(scope="session")
def other_adapter(model_folder: Path) -> Path:
    return tiny_models.save_adapter(
        model_folder.parent / "other", model_folder, seed=1, r=3, target_modules=["q_proj"]
    )
