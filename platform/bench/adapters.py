"""Random adapters as PEFT writes them, put into a store: both engines read the same files."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.checkpoint import CONFIG_FILE, TENSORS_FILE, inspect
from loraplex.adapters.storage import AdapterStore
from loraplex.engine.model import LoadedModel

RANKS = (8, 16, 32, 64)
"""Ranks of the adapters, in turn."""
NUM_ADAPTERS = 16


@dataclass(frozen=True, slots=True)
class BenchAdapter:
    """One adapter in the store."""

    digest: str
    rank: int
    num_bytes: int
    folder: Path


def write_adapters(
    model: LoadedModel,
    data_dir: Path,
    seed: int,
    num_adapters: int = NUM_ADAPTERS,
    ranks: Sequence[int] = RANKS,
) -> Iterator[BenchAdapter]:
    """Store adapters of these ranks in turn on all linear layers but the head, in the model's
    dtype.

    A and B are random and not zero, so strong that no two adapters give the same text.
    """
    store, base = AdapterStore(data_dir / "adapters"), BaseShapes.read(model.path)
    generator = torch.Generator().manual_seed(seed)
    draft = data_dir / "draft"
    for _, rank in zip(range(num_adapters), cycle(ranks), strict=False):
        draft.mkdir(parents=True)
        tensors = _tensors(model, base, rank, generator)
        save_file(tensors, draft / TENSORS_FILE, metadata={"format": "pt"})
        (draft / CONFIG_FILE).write_text(json.dumps(_config(tensors, rank)))
        checkpoint = inspect(draft, base)
        folder = store.put(checkpoint)
        shutil.rmtree(draft)
        yield BenchAdapter(checkpoint.digest, rank, checkpoint.num_bytes, folder)


def _config(tensors: dict[str, Tensor], rank: int) -> dict[str, object]:
    modules = {name.split(".")[-3] for name in tensors}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": sorted(modules),
        "bias": "none",
        "inference_mode": True,
    }


def _tensors(
    model: LoadedModel, base: BaseShapes, rank: int, generator: torch.Generator
) -> dict[str, Tensor]:
    def normal(rows: int, columns: int, deviation: float) -> Tensor:
        return (torch.randn(rows, columns, generator=generator) * deviation).to(model.dtype)

    tensors: dict[str, Tensor] = {}
    for path in sorted(base.linears.keys() - base.heads):
        out_features, in_features = base.linears[path]
        name = f"base_model.model.{path}"
        tensors[f"{name}.lora_A.weight"] = normal(rank, in_features, in_features**-0.5)
        tensors[f"{name}.lora_B.weight"] = normal(out_features, rank, 0.15 * rank**-0.5)
    return tensors
