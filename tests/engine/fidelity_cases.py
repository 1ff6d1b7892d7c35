"""Adapters that do each thing that PEFT's LoRA can do, on models where it shows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from tests import tiny_models
from tests.engine.architectures import ARCHITECTURES
from transformers import Gemma3TextConfig, PhiConfig

from loraplex.adapters.weights import AdapterWeights

NUM_TOKENS = 320
MODELS = MappingProxyType(
    {
        "untied": tiny_models.llama_config(attention_bias=True, mlp_bias=True),
        "tied": tiny_models.qwen3_config(),
        "gpt2": ARCHITECTURES["GPT-2"].config,
        "scaled": Gemma3TextConfig(
            **{**ARCHITECTURES["Gemma 3 (text)"].config.to_dict(), "initializer_range": 0.1}
        ),
        "biased head": PhiConfig(
            **tiny_models.sizes(tie_word_embeddings=False, partial_rotary_factor=0.5)
        ),
        "capped": ARCHITECTURES["Gemma 2"].config,
    }
)
_LINEARS = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
_GPT2 = {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}


@dataclass(frozen=True)
class Case:
    """One adapter, and what a server would overlook that does not know the field."""

    model: str
    config: Mapping[str, Any]
    overlooked: tuple[str, ...]
    """Parts of the weights, or ``pairs``."""
    at: str = ""
    """Where: the end of a module's path."""
    num_tokens: int | None = None
    """Of a vocabulary that was extended."""

    def overlook(self, weights: AdapterWeights) -> AdapterWeights:
        """What such a server would compute with."""
        kept = dict(weights.pairs)
        if "pairs" in self.overlooked:
            kept = {path: pair for path, pair in kept.items() if not path.endswith(self.at)}
        nothing = dict.fromkeys(set(self.overlooked) - {"pairs"})
        effects = {
            path: replace(effect, **nothing) if path.endswith(self.at) else effect
            for path, effect in weights.effects.items()
        }
        return replace(weights, pairs=kept, effects=effects, table=None)


def _case(
    model: str, overlooked: str, at: str = "", num_tokens: int | None = None, **config: Any
) -> Case:
    targets = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"]}
    return Case(model, targets | config, tuple(overlooked.split()), at, num_tokens)


_PATTERNS = {
    "target_modules": _LINEARS,
    "use_rslora": True,
    "rank_pattern": {"v_proj": 16, r"layers\.1\.mlp\.up_proj": 5},
    "alpha_pattern": {r"layers\.[02]\.self_attn\.v_proj": 20, "o_proj": 9},
}
_ADDED = NUM_TOKENS + 3

CASES: Mapping[str, Case] = MappingProxyType(
    {
        "use_dora": _case("untied", "gain offset", target_modules="all-linear", use_dora=True),
        "use_dora with use_rslora, rank_pattern and alpha_pattern": _case(
            "untied", "gain offset", use_dora=True, **_PATTERNS
        ),
        "use_dora on gpt2": _case("gpt2", "gain offset", use_dora=True, **_GPT2),
        "use_dora with bias": _case(
            "untied", "gain offset", use_dora=True, bias="all", target_modules=_LINEARS
        ),
        "use_dora on lm_head": _case(
            "untied", "gain", "lm_head", use_dora=True, target_modules=["lm_head"]
        ),
        "use_dora on embed_tokens": _case(
            "untied", "gain", use_dora=True, target_modules=["embed_tokens"]
        ),
        "use_dora on scaled embed_tokens": _case(
            "scaled", "gain", use_dora=True, target_modules=["embed_tokens"]
        ),
        "lora_bias": _case("untied", "offset", lora_bias=True, use_rslora=True),
        "lora_bias on gpt2": _case("gpt2", "offset", lora_bias=True, **_GPT2),
        "bias all": _case("untied", "offset", bias="all"),
        "bias lora_only": _case("untied", "offset", bias="lora_only"),
        "bias all with lora_bias": _case("untied", "offset", bias="all", lora_bias=True),
        "bias all on gpt2, norms too": _case("gpt2", "offset", "ln_1", bias="all", **_GPT2),
        "bias lora_only on gpt2": _case("gpt2", "offset", bias="lora_only", **_GPT2),
        "modules_to_save lm_head": _case("untied", "weight", modules_to_save=["lm_head"]),
        "modules_to_save embed_tokens": _case("untied", "weight", modules_to_save=["embed_tokens"]),
        "modules_to_save both": _case(
            "untied", "weight", modules_to_save=["embed_tokens", "lm_head"]
        ),
        "modules_to_save of a linear layer": _case(
            "untied", "weight bias", target_modules=["q_proj"], modules_to_save=["down_proj"]
        ),
        "modules_to_save of a Conv1D": _case(
            "gpt2",
            "weight bias",
            target_modules=["c_attn"],
            modules_to_save=["mlp.c_fc"],
            fan_in_fan_out=True,
        ),
        "modules_to_save tied lm_head": _case("tied", "weight", modules_to_save=["lm_head"]),
        "modules_to_save tied embed_tokens": _case(
            "tied", "weight", modules_to_save=["embed_tokens"]
        ),
        "modules_to_save scaled embed_tokens": _case(
            "scaled", "weight", modules_to_save=["embed_tokens"]
        ),
        "modules_to_save wpe": _case("gpt2", "weight", modules_to_save=["wpe"], **_GPT2),
        "ensure_weight_tying with modules_to_save": _case(
            "tied", "weight", "lm_head", modules_to_save=["embed_tokens"], ensure_weight_tying=True
        ),
        "ensure_weight_tying with targets": _case(
            "tied",
            "pairs",
            "lm_head",
            target_modules=["embed_tokens", "v_proj"],
            ensure_weight_tying=True,
        ),
        "embed_tokens": _case("untied", "lookup", target_modules=["embed_tokens", "v_proj"]),
        "tied embed_tokens": _case("tied", "lookup", target_modules=["embed_tokens"]),
        "scaled embed_tokens": _case("scaled", "lookup", target_modules=["embed_tokens"]),
        "wte and wpe": _case("gpt2", "lookup", "wpe", target_modules=["wte", "wpe"]),
        "lm_head": _case("untied", "pairs", "lm_head", target_modules=["lm_head", "q_proj"]),
        "tied lm_head": _case("tied", "pairs", "lm_head", target_modules=["lm_head"]),
        "trainable_token_indices": _case(
            "untied", "tokens", trainable_token_indices=list(range(9, 300))
        ),
        "trainable_token_indices of both": _case(
            "untied",
            "tokens",
            "lm_head",
            trainable_token_indices={"embed_tokens": [5, 3], "lm_head": list(range(100, 9, -1))},
        ),
        "tied trainable_token_indices": _case(
            "tied", "tokens", "lm_head", trainable_token_indices=list(range(9, 300))
        ),
        "tied trainable_token_indices, another for the head": _case(
            "tied",
            "tokens",
            "lm_head",
            trainable_token_indices={"embed_tokens": [5, 3], "lm_head": list(range(9, 100))},
        ),
        "tied trainable_token_indices, the same for the head": _case(
            "tied",
            "tokens",
            "lm_head",
            trainable_token_indices={"embed_tokens": [*range(9, 100)], "lm_head": [*range(9, 100)]},
            ensure_weight_tying=True,
        ),
        "scaled trainable_token_indices": _case(
            "scaled", "tokens", "embed_tokens", trainable_token_indices=list(range(9, 300))
        ),
        "added vocabulary": _case("untied", "tokens", num_tokens=_ADDED),
        "added vocabulary, tied": _case("tied", "tokens", num_tokens=_ADDED),
        "added vocabulary and trainable_token_indices": _case(
            "tied", "tokens", num_tokens=_ADDED, trainable_token_indices=[4, 7, 320, 322]
        ),
        "added vocabulary and modules_to_save": _case(
            "untied", "weight", num_tokens=_ADDED, modules_to_save=["embed_tokens", "lm_head"]
        ),
        "added vocabulary and embed_tokens": _case(
            "tied", "lookup", num_tokens=_ADDED, target_modules=["embed_tokens", "q_proj"]
        ),
        "added vocabulary, both and use_dora": _case(
            "untied",
            "gain",
            num_tokens=_ADDED,
            target_modules=["embed_tokens", "lm_head"],
            use_dora=True,
        ),
        "added vocabulary, capped": _case("capped", "tokens", num_tokens=_ADDED),
        "use_dora on a biased head": _case(
            "biased head", "gain offset", "lm_head", use_dora=True, target_modules=["lm_head"]
        ),
        "bias all with a biased head": _case(
            "biased head", "offset", bias="all", target_modules=["q_proj", "lm_head"]
        ),
        "modules_to_save of a biased head": _case(
            "biased head", "weight bias", target_modules=["fc1"], modules_to_save=["lm_head"]
        ),
        # PEFT computes such a head without its bias.
        "trainable_token_indices of a biased head": _case(
            "biased head",
            "offset tokens",
            "lm_head",
            target_modules=["fc2"],
            trainable_token_indices={"lm_head": [*range(9, 200)]},
        ),
        "added vocabulary with a biased head": _case(
            "biased head", "tokens", target_modules=["dense"], num_tokens=_ADDED
        ),
        "rank 1": _case("untied", "pairs", r=1),
        "rank 512": _case("untied", "pairs", r=512, lora_alpha=64),
    }
)
