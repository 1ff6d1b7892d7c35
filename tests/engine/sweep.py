"""Puts every causal language model of transformers through the gate, as a tiny random model.

What the gate accepts is compared with transformers' own forward pass.  It takes about a minute, so
it is no test: it writes docs/models.md (see `models_page.py`).
"""

import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tests import tiny_models
from tests.engine.alone import RTOL, generate_alone, relative_error
from tests.engine.packed_greedy import Request, generate
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, PreTrainedConfig
from transformers.utils import logging as transformers_logging

from loraplex.engine.config import ModelConfig
from loraplex.engine.errors import ModelUnsupported
from loraplex.engine.model import declare, load_model
from loraplex.engine.runner import ModelRunner

MAX_PARAMETERS = 30_000_000
WINDOW = 8
# Fields of many configurations that make them small; each takes those that it has.
SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "word_embed_proj_dim", "attention_hidden_size"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "dense_intermediate_size"), 80),
    **dict.fromkeys(("num_hidden_layers", "num_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_local_experts", "moe_num_experts", "expert_num"), 4),
    **dict.fromkeys(("num_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "num_experts_per_token"), 2),
    **dict.fromkeys(("moe_k", "moe_topk", "index_n_heads", "num_global_key_value_heads"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "num_shared_experts"), 1),
    **dict.fromkeys(("first_k_dense_replace", "moe_layer_start_index", "n_groups"), 1),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size", "embedding_size"), 32),
    **dict.fromkeys(("shared_expert_intermediate_size",), 32),
    **dict.fromkeys(("head_dim", "v_head_dim", "qk_head_dim", "kv_channels"), 16),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "mamba_head_dim", "mamba_d_head"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim", "index_head_dim"), 8),
    **dict.fromkeys(("hidden_size_per_layer_input", "mamba_d_state"), 8),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 320),
    **dict.fromkeys(("decoder_layers", "encoder_layers"), 2),
    "max_position_embeddings": 256,
    "query_pre_attn_scalar": 16,
    "num_kv_shared_layers": 0,
    "index_topk": 4,
    "initializer_range": 0.2,
}
# Not every architecture takes every width; the first set that it runs with counts.
LEFT_OUT = ((), ("head_dim",))
# What some ask for beside it.
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "nemotron": {"num_key_value_heads": 2},
    "reformer": {"is_decoder": True},
}


class Swept(NamedTuple):
    """One model type, and what became of it."""

    model_type: str
    outcome: str
    """`equal`, `different`, `refused` or `not tried`."""
    reason: str = ""


def sweep() -> Iterator[Swept]:
    """Try all model types, in order of name."""
    transformers_logging.set_verbosity_error()
    for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING.keys(), key=lambda kind: kind.model_type):
        folder = Path(tempfile.mkdtemp())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield _try_all_sizes(kind, folder)
        finally:
            shutil.rmtree(folder)


def _try_all_sizes(kind: type[PreTrainedConfig], folder: Path) -> Swept:
    try:
        refused = _refused_by_config(kind, folder / "config")
    except Exception as error:  # noqa: BLE001  whatever it was, the next set may be right
        return Swept(kind.model_type, "not tried", _short(error))
    if refused is not None:
        return refused
    swept = Swept(kind.model_type, "not tried")
    for index, left_out in enumerate(LEFT_OUT):
        try:
            swept = _try(_small(kind, left_out), folder / str(index))
        except Exception as error:  # noqa: BLE001  as above
            swept = Swept(kind.model_type, "not tried", _short(error))
        if swept.outcome == "refused" and "forward pass failed" in swept.reason:
            swept = swept._replace(outcome="not tried")  # these sizes do not go together
        if swept.outcome != "not tried":
            break
    return swept


def _refused_by_config(kind: type[PreTrainedConfig], folder: Path) -> Swept | None:
    """What the configuration as it comes already tells, however large its model is."""
    kind().save_pretrained(folder)
    (folder / "model.safetensors").touch()
    try:
        declare(folder)
    except ModelUnsupported as error:
        return Swept(kind.model_type, "refused", _short(error))
    return None


def _small(kind: type[PreTrainedConfig], left_out: tuple[str, ...]) -> PreTrainedConfig:
    usual = kind()
    values: dict[str, Any] = {
        name: value
        for name, value in SMALL.items()
        if name not in left_out
        and (name == "head_dim" or isinstance(_get(usual, name), int | float))
    }
    if getattr(usual, "sliding_window", None):
        values["sliding_window"] = WINDOW
    if _get(usual, "num_key_value_heads") == _get(usual, "num_attention_heads"):
        values["num_key_value_heads"] = SMALL["num_attention_heads"]
    values |= NEEDED.get(kind.model_type, {})
    tokens = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 1}
    config = kind(**values, **tokens)
    layer_types = getattr(usual, "layer_types", None)
    if layer_types and len(getattr(config, "layer_types", None) or ()) != config.num_hidden_layers:
        config = kind(**values, **tokens, layer_types=layer_types[: config.num_hidden_layers])
    return config


def _get(config: PreTrainedConfig, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # noqa: BLE001  some fields differ by layer, and say so when they are read
        return None


def _try(config: PreTrainedConfig, folder: Path) -> Swept:
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config)
    if sum(parameter.numel() for parameter in network.parameters()) > MAX_PARAMETERS:
        return Swept(config.model_type, "not tried", "its configuration does not shrink")
    tiny_models.save_model(folder, config)
    try:
        model = load_model(ModelConfig(folder, "tiny", "cpu", "float32"))
    except ModelUnsupported as error:
        return Swept(config.model_type, "refused", _short(error))
    reference = tiny_models.load_reference(folder)
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(2, 320, (n,), generator=generator).tolist() for n in (1, 21, 2, 9)]
    alone = [generate_alone(reference, tuple(prompt)) for prompt in prompts]
    requests = [Request(str(index), one.prompt) for index, one in enumerate(alone)]
    generate(ModelRunner(model, 200, 4), requests, 5, chunk_size=5, block_size=4, num_blocks=200)
    worst = max(relative_error(r, one) for r, one in zip(requests, alone, strict=True))
    return Swept(config.model_type, "equal" if worst < RTOL else "different", f"{worst:.0e}")


def _short(error: Exception) -> str:
    text = str(error).rpartition("cannot be served: ")[2]
    return (
        " ".join(text.split())[:300] if isinstance(error, ModelUnsupported) else repr(error)[:200]
    )
