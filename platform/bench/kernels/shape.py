"""Sizes of a model's layers, which are those of its kernels' work."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from loraplex.platform.bench.errors import BenchRefused


@dataclass(frozen=True, slots=True)
class KernelShape:
    """A Llama's sizes; the demo's base model unless others are given."""

    name: str = "SmolLM2-135M"
    hidden_size: int = 576
    num_layers: int = 30
    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64
    intermediate_size: int = 1536
    vocab_size: int = 49_152

    @classmethod
    def of_config(cls, folder: Path) -> Self:
        """Read a model's ``config.json``.

        Raises:
            BenchRefused: there is none, or it is not of such a model.
        """
        path = folder / "config.json"
        try:
            config = json.loads(path.read_bytes())
            num_heads, hidden_size = config["num_attention_heads"], config["hidden_size"]
            return cls(
                name=folder.resolve().name,
                hidden_size=hidden_size,
                num_layers=config["num_hidden_layers"],
                num_heads=num_heads,
                num_kv_heads=config.get("num_key_value_heads") or num_heads,
                head_dim=config.get("head_dim") or hidden_size // num_heads,
                intermediate_size=config["intermediate_size"],
                vocab_size=config["vocab_size"],
            )
        except (OSError, ValueError, TypeError) as error:
            raise BenchRefused(f"--model: {path} cannot be read: {error}") from error
        except KeyError as error:
            raise BenchRefused(
                f"--model: {path} has no {error}; give the folder of a model like Llama"
            ) from error

    @property
    def linears(self) -> tuple[tuple[int, int], ...]:
        """``(out, in)`` of one layer: q, k, v, o, gate, up, down."""
        hidden, inner = self.hidden_size, self.intermediate_size
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = ((q, hidden), (kv, hidden), (kv, hidden), (hidden, q))
        return (*attention, (inner, hidden), (inner, hidden), (hidden, inner))

    @property
    def groups(self) -> tuple[range, ...]:
        """Numbers of those that share an input: q, k and v; o; gate and up; down."""
        return (range(3), range(3, 4), range(4, 6), range(6, 7))
