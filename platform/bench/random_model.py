"""A random Llama in a folder, so that a benchmark needs no real weights."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Sizes of a Llama; those of the demo's base model unless others are given."""

    hidden_size: int = 576
    num_layers: int = 30
    num_heads: int = 9
    num_kv_heads: int = 3
    intermediate_size: int = 1536
    vocab_size: int = 49_152
    max_position_embeddings: int = 8192


def write_random_llama(
    folder: Path, shape: LlamaShape, seed: int, device: torch.device | str = "cpu"
) -> None:
    """Write config, weights (bfloat16, head tied to the embedding) and a tokenizer.

    Weights are drawn on ``device``, and are others on another. The tokenizer's words are made up.
    The weights are small enough for logits to stay finite in every dtype; its arithmetic costs what
    a trained model of this shape costs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_config(shape)))
    save_file(
        _weights(shape, seed, device), folder / "model.safetensors", metadata={"format": "pt"}
    )
    words = {f"w{token_id}": token_id for token_id in range(shape.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))  # noqa: S106  no secret
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")


def _config(shape: LlamaShape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "intermediate_size": shape.intermediate_size,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": "bfloat16",
    }


def _weights(shape: LlamaShape, seed: int, device: torch.device | str) -> dict[str, Tensor]:
    generator = torch.Generator(device).manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        values = torch.randn(rows, columns, generator=generator, device=device)
        return values.mul_(columns**-0.5).to(torch.bfloat16).cpu()

    hidden = shape.hidden_size
    kv_size = hidden // shape.num_heads * shape.num_kv_heads
    norm = torch.ones(hidden, dtype=torch.bfloat16)
    weights = {"model.embed_tokens.weight": matrix(shape.vocab_size, hidden)}
    for layer in range(shape.num_layers):
        linears = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv_size, hidden),
            "self_attn.v_proj": (kv_size, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (shape.intermediate_size, hidden),
            "mlp.up_proj": (shape.intermediate_size, hidden),
            "mlp.down_proj": (hidden, shape.intermediate_size),
        }
        for name, (rows, columns) in linears.items():
            weights[f"model.layers.{layer}.{name}.weight"] = matrix(rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{name}.weight"] = norm.clone()
    return weights | {"model.norm.weight": norm}
