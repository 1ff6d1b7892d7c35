"""The folder of a base model: found on disk or on the hub, and refused for what its files show."""

import json
import re
from collections.abc import Collection
from math import prod
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from loraplex.adapters.base_shapes import weight_files
from loraplex.adapters.errors import TensorFileInvalid
from loraplex.adapters.tensor_file import read_entries
from loraplex.engine.errors import ModelUnsupported

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
# Copies of the same weights in other layouts, which transformers does not read.
_HUB_COPIES = ("original/*", "consolidated*", "onnx/*")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def local_folder(path: Path) -> Path:
    """Return the folder of a model named by path or, as ``owner/name``, on the hub.

    Raises:
        ModelUnsupported: there is none.
    """
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelUnsupported(f"{path} is no model folder: it has no config.json")
        return path
    if path.exists():
        raise ModelUnsupported(f"{path} is a file; name the folder that holds config.json")
    if not _HUB_NAME.fullmatch(str(path)):
        raise ModelUnsupported(f"there is no folder {path}")
    try:
        return Path(
            snapshot_download(
                str(path), allow_patterns=[*_HUB_FILES], ignore_patterns=[*_HUB_COPIES]
            )
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelUnsupported(
            f"there is no folder {path}, and the hub has no such model or is out of reach: {error}"
        ) from error


def check_folder(folder: Path, model_types: Collection[str]) -> None:
    """Refuse what the files of a folder show, before any of them is loaded.

    Args:
        folder: with config.json.
        model_types: those that need no code from the folder.

    Raises:
        ModelUnsupported: an adapter, quantised or pickled weights, or a model with code of its own.
    """
    if (folder / "adapter_config.json").exists():
        raise ModelUnsupported(
            "it holds adapter_config.json, so it is an adapter and no base model"
        )
    config = read_config(folder)
    _check_type(config, model_types)
    quantised = config.get("quantization_config") or config.get("compression_config")
    if quantised:
        method = quantised.get("quant_method", "unknown") if isinstance(quantised, dict) else ""
        raise ModelUnsupported(
            f"its weights are quantised ({method}); serve the same model in bfloat16 or float32"
        )
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(path.name for kind in _PICKLES for path in folder.glob(kind))
        found = f"only {pickles[0]}, a pickle that can run code when read" if pickles else "none"
        raise ModelUnsupported(f"weights are read from *.safetensors; it has {found}")


def num_weights(folder: Path) -> int:
    """Return how many numbers a model's files hold; 0 if their headers cannot be read."""
    try:
        entries = [entry for path in weight_files(folder) for entry in read_entries(path)]
    except (OSError, ValueError, TensorFileInvalid):
        return 0  # whoever loads them will tell what is wrong
    return sum(prod(entry.shape) for entry in entries)


def own_dtype(folder: Path) -> str:
    """Return the dtype that a model's weights were saved in, as ``float32``; the default if unsaid.

    Raises:
        ModelUnsupported: config.json cannot be read.
    """
    config = read_config(folder)
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def read_config(folder: Path) -> dict[str, Any]:
    """Return config.json as it is.

    Raises:
        ModelUnsupported: it cannot be read.
    """
    try:
        # The operator's own file, which may hold Infinity: no reason to be strict.
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ModelUnsupported(f"its config.json cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelUnsupported("its config.json is no object")
    return config


def _check_type(config: dict[str, Any], model_types: Collection[str]) -> None:
    model_type = config.get("model_type")
    if model_type in model_types:
        return
    if config.get("auto_map"):
        raise ModelUnsupported(
            f"model_type {model_type!r} needs code from its own folder (auto_map), which is never "
            "run here"
        )
    raise ModelUnsupported(
        f"model_type is {model_type!r}, which this version of transformers does not have"
    )
