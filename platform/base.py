"""The base model that the settings name, loaded with what is compiled for this machine."""

import logging
from pathlib import Path

import torch

from loraplex.engine.adapted import computed_apart
from loraplex.engine.config import ModelConfig
from loraplex.engine.errors import KernelsMissing
from loraplex.engine.gguf_model import convert_gguf
from loraplex.engine.model import LoadedModel, load_model
from loraplex.kernels.cpu_kernels import COMPILED_DTYPES, CpuKernels, compile_kernels
from loraplex.kernels.linear_choice import Choose, preferred
from loraplex.platform.demo.base import DEMO_MODEL_NAME, demo_model_dir, find_gguf
from loraplex.platform.dense_choice import KeptChoice
from loraplex.platform.settings import Settings
from loraplex.platform.worker_settings import DEMO_MODEL

_log = logging.getLogger(__name__)


def load_base(settings: Settings) -> LoadedModel:
    """Load it, on a CPU with the kernels that the settings ask for.

    Raises what `load_model` raises, KernelsMissing and DemoModelMissing.
    """
    config = model_config(settings)
    _log.info("loading %s as %s on %s", config.name, config.dtype, config.device)
    kernels = None
    if settings.kernels == "compiled":
        kernels = _demanded_kernels(settings, config)
    elif settings.kernels == "auto" and config.device == "cpu":
        kernels = compile_kernels(settings.compiled_dir)
    choose: Choose = (
        preferred if settings.kernels == "compiled" else KeptChoice(settings.compiled_dir)
    )
    model = load_model(config, kernels, choose)
    if settings.kernels == "compiled" and (others := computed_apart(model.network)):
        _log.warning(
            "LORAPLEX_KERNELS=compiled: torch computes %d modules of this model (such as %s), so "
            "bits of a row can depend on the others of its step",
            len(others),
            others[0],
        )
    return model


def _demanded_kernels(settings: Settings, config: ModelConfig) -> CpuKernels:
    """Compile them, or refuse to start: this is for who relies on what they promise."""
    remedy = "set LORAPLEX_KERNELS=auto"
    if config.device != "cpu":
        raise KernelsMissing(
            f"LORAPLEX_KERNELS=compiled is for CPUs, and the model is on {config.device}; {remedy}"
        )
    if config.dtype not in COMPILED_DTYPES:
        raise KernelsMissing(
            f"LORAPLEX_KERNELS=compiled computes {' and '.join(COMPILED_DTYPES)}, not "
            f"{config.dtype}; set LORAPLEX_DTYPE to one of them, or {remedy}"
        )
    kernels = compile_kernels(settings.compiled_dir)
    if kernels is None:
        raise KernelsMissing(
            "LORAPLEX_KERNELS=compiled, but the kernels could not be compiled, as the log says; "
            f"install g++ (clang is not used), or {remedy}"
        )
    return kernels


def device_of(settings: Settings) -> str:
    """Decide what `auto` means here: `cpu` or `cuda`."""
    if settings.device != "auto":
        return settings.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def model_config(settings: Settings) -> ModelConfig:
    """Decide what `auto` and `demo` mean here; converts the demo model when it is first used."""
    device = device_of(settings)
    dtype: str = settings.dtype
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "auto"
    path, name = Path(settings.model), settings.model.rstrip("/").rpartition("/")[2]
    if settings.model == DEMO_MODEL:
        path, name = demo_model_dir(settings.data_dir), DEMO_MODEL_NAME
        if not path.exists():
            _log.info("converting the demo model, once; this takes about 20 seconds")
            convert_gguf(find_gguf(), path)
    return ModelConfig(path, name, device, dtype, settings.max_model_len)
