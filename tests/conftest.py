"""Environment of all tests, set before anything imports torch, and the demo model, made once."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from loraplex.platform.demo.base import demo_model_dir, find_gguf

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ.setdefault("TRITON_INTERPRET", "1")  # on a machine with a GPU, its script says 0
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def demo_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the demo's base model, converted from its package."""
    from loraplex.engine.model import convert_gguf  # noqa: PLC0415  after the environment is set

    folder = demo_model_dir(tmp_path_factory.mktemp("demo"))
    convert_gguf(find_gguf(), folder)
    return folder


@pytest.fixture(scope="session")
def new_demo_data_dir(
    demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Path]:
    """Makes data directories that hold the converted model and nothing else."""

    def make() -> Path:
        data_dir = tmp_path_factory.mktemp("served") / "data"
        shutil.copytree(demo_model, demo_model_dir(data_dir), copy_function=os.link)
        return data_dir

    return make


@pytest.fixture(scope="session")
def demo_data_dir(new_demo_data_dir: Callable[[], Path]) -> Path:
    """Data directory of the platform that all tests share."""
    return new_demo_data_dir()
