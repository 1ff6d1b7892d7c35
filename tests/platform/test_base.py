"""Which kernels the settings put under a base model."""

from pathlib import Path

import pytest
from tests import tiny_models
from tests.engine.architectures import ARCHITECTURES

from loraplex.engine.errors import KernelsMissing
from loraplex.engine.runner import ModelRunner
from loraplex.kernels.linear import TorchPacker
from loraplex.kernels.linear_cpu import CpuLinear
from loraplex.platform.base import load_base
from loraplex.platform.settings import Settings


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save_model(tmp_path_factory.mktemp("tiny"), tiny_models.llama_config())


@pytest.fixture
def settings(model: Path) -> Settings:
    return Settings(model=str(model), device="cpu", data_dir=model.parent)


def with_kernels(settings: Settings, kernels: str, dtype: str = "float32") -> Settings:
    return settings.model_copy(update={"kernels": kernels, "dtype": dtype})


def test_torch_alone_compiles_and_loads_nothing(settings: Settings, tmp_path: Path) -> None:
    alone = with_kernels(settings, "torch").model_copy(update={"kernels_dir": tmp_path / "kernels"})
    loaded = load_base(alone)
    assert loaded.kernels is None
    assert not isinstance(loaded.packer, CpuLinear)
    assert not list(alone.compiled_dir.glob("*.so"))


def test_compiled_takes_our_own_wherever_there_is_one(settings: Settings) -> None:
    loaded = load_base(with_kernels(settings, "compiled", "bfloat16"))
    assert loaded.kernels is not None
    assert loaded.packer is loaded.kernels.linear
    runner = ModelRunner(loaded, num_blocks=8, block_size=4)
    assert "dense layers by compiled code" in runner.kernels


def test_it_is_told_what_of_a_model_is_not_compiled(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load_base(with_kernels(settings, "compiled"))
    assert "can depend on the others" not in caplog.text
    folder = tiny_models.save_model(tmp_path / "moe", ARCHITECTURES["Qwen3-MoE"].config)
    routed = settings.model_copy(update={"model": str(folder)})
    load_base(with_kernels(routed, "compiled"))
    assert "torch computes 6 modules of this model (such as model.layers.0.mlp." in caplog.text


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_what_was_chosen_is_part_of_what_step_times_depend_on(
    settings: Settings, kernels: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    loaded = load_base(with_kernels(settings, kernels))
    assert f"dense layers are computed by {loaded.packer.name} " in caplog.text
    runner = ModelRunner(loaded, num_blocks=8, block_size=4)
    assert f"dense layers by {loaded.packer.name}" in runner.kernels


def test_who_computes_dense_layers_is_measured_at_the_first_start_alone(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    first_start = with_kernels(settings, "torch").model_copy(update={"kernels_dir": tmp_path})
    chosen = load_base(first_start).packer.name
    assert "(ms by rows" in caplog.text
    (kept,) = tmp_path.glob("dense-*.json")
    caplog.clear()
    assert load_base(first_start).packer.name == chosen
    assert f"dense layers are computed by {chosen} as it was measured before: {kept}" in caplog.text
    assert "(ms by rows" not in caplog.text


def test_without_a_compiler_torch_does_all(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    loaded = load_base(with_kernels(settings, "auto", "float16"))
    assert loaded.kernels is None
    assert isinstance(loaded.packer, TorchPacker)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"dtype": "float16"}, "float32 and bfloat16, not float16; set LORAPLEX_DTYPE"),
        ({"device": "cuda"}, "is for CPUs, and the model is on cuda"),
        ({}, "could not be compiled"),
    ],
)
def test_compiled_refuses_to_start_where_there_is_none(
    settings: Settings,
    change: dict[str, str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    demanded = with_kernels(settings, "compiled").model_copy(update=change)
    with pytest.raises(KernelsMissing, match=told):
        load_base(demanded)
