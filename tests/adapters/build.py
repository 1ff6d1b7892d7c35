"""Hand-made adapters and bases, small enough to read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.tensor_file import TensorEntry

CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 2,
    "lora_alpha": 6,
    "target_modules": ["q_proj"],
}
IN, OUT = 4, 3
Q0, Q1 = "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"


def base() -> BaseShapes:
    """Two layers with one linear each, an embedding, a tied head."""
    shapes = {f"{Q0}.weight": (OUT, IN), f"{Q1}.weight": (OUT, IN)}
    shapes |= {"model.embed_tokens.weight": (7, IN), "model.norm.weight": (IN,)}
    entries = [TensorEntry(name, "F32", shape, 0, 0) for name, shape in shapes.items()]
    return BaseShapes.of(entries, tied=True)


def pair(module: str, rank: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    """Random A [rank, IN] and B [OUT, rank] under PEFT's names."""
    random = np.random.default_rng(seed)
    prefix = f"base_model.model.{module}"
    return {
        f"{prefix}.lora_A.weight": random.standard_normal((rank, IN)).astype(np.float32),
        f"{prefix}.lora_B.weight": random.standard_normal((OUT, rank)).astype(np.float32),
    }


def tensors() -> dict[str, np.ndarray]:
    """The pairs that CONFIG asks for on `base()`."""
    return {**pair(Q0, seed=1), **pair(Q1, seed=2)}


def save(
    folder: Path, config: dict[str, Any] | None = None, content: dict[str, np.ndarray] | None = None
) -> Path:
    """Write an adapter as PEFT does; `config` adds to or replaces fields of CONFIG."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    save_file(tensors() if content is None else content, folder / "adapter_model.safetensors")
    return folder
