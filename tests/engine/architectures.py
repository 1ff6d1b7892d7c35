"""The architectures that are proven, each as a tiny model; docs/models.md lists the same ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tests.tiny_models import llama_config, qwen3_config, sizes
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GraniteConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3MoeConfig,
)

TOLERANCES: Mapping[str, float] = MappingProxyType({"bfloat16": 5e-2, "float16": 1e-2})
"""Largest difference of logits in half precision, over the largest logit."""
ROUTED_TOLERANCES: Mapping[str, float] = MappingProxyType({**TOLERANCES, "bfloat16": 0.2})
"""The same where a rounded score may choose another expert."""
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
WINDOW = 8
_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class Architecture:
    """One that transformers has, shrunk to three layers."""

    config: PreTrainedConfig
    shows: str
    """What of it is exercised that others do not have."""
    linears: tuple[str, ...]
    """Kinds of linear layers that adapters are proven on."""
    restriction: str = "–"
    parameters: tuple[str, ...] = ()
    """The same of parameters that are no linear layers: those of experts."""

    @property
    def tolerances(self) -> Mapping[str, float]:
        return ROUTED_TOLERANCES if self.parameters else TOLERANCES


EXPERTS = ("experts.gate_up_proj", "experts.down_proj", "gate.weight")
"""Parameters of experts and their routers."""

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "Llama": Architecture(
            llama_config(), "grouped queries, head apart", (*ATTENTION, *MLP, "lm_head")
        ),
        "Mistral": Architecture(
            MistralConfig(**sizes(sliding_window=WINDOW, tie_word_embeddings=False)),
            "a sliding window in all layers",
            (*ATTENTION, *MLP, "lm_head"),
        ),
        "Qwen2": Architecture(
            Qwen2Config(
                **sizes(use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1)
            ),
            "biases on q, k and v; the upper layers slide",
            (*ATTENTION, *MLP),
        ),
        "Qwen3": Architecture(
            qwen3_config(), "normalised q and k, tied head", (*ATTENTION, *MLP, "lm_head")
        ),
        "Gemma 2": Architecture(
            Gemma2Config(
                **sizes(
                    head_dim=16,
                    query_pre_attn_scalar=48,
                    attn_logit_softcapping=5.0,
                    final_logit_softcapping=20.0,
                    sliding_window=WINDOW,
                    layer_types=[_SLIDING, _FULL, _SLIDING],
                )
            ),
            "soft-capped scores and logits, a scale of its own, every other layer slides",
            (*ATTENTION, *MLP),
        ),
        "Gemma 3 (text)": Architecture(
            Gemma3TextConfig(
                **sizes(
                    head_dim=16,
                    query_pre_attn_scalar=48,
                    sliding_window=WINDOW,
                    layer_types=[_SLIDING, _SLIDING, _FULL],
                )
            ),
            "a rotary base for each layer type, normalised q and k",
            (*ATTENTION, *MLP),
            "checkpoints with a vision model are refused; save their text model alone",
        ),
        "Phi-3": Architecture(
            Phi3Config(**sizes(tie_word_embeddings=False)),
            "fused projections",
            ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head"),
            "with `longrope` (128k): the original length, 4,096 tokens",
        ),
        "GPT-2": Architecture(
            GPT2Config(
                vocab_size=320,
                n_embd=64,
                n_layer=3,
                n_head=4,
                n_positions=256,
                initializer_range=0.2,
                bos_token_id=0,
                eos_token_id=1,
            ),
            "absolute positions, Conv1D layers, tied head",
            ("c_attn", "c_proj", "c_fc"),
            "`n_positions` tokens (1,024)",
        ),
        "OLMo 2": Architecture(
            Olmo2Config(**sizes(tie_word_embeddings=False)),
            "norms after the layers, and over all heads of q and k",
            (*ATTENTION, *MLP, "lm_head"),
        ),
        "Granite": Architecture(
            GraniteConfig(
                **sizes(
                    attention_multiplier=0.3,
                    embedding_multiplier=3.0,
                    residual_multiplier=0.4,
                    logits_scaling=2.0,
                    tie_word_embeddings=False,
                )
            ),
            "multipliers of embedding, attention, residuals and logits",
            (*ATTENTION, *MLP, "lm_head"),
        ),
        "Qwen3-MoE": Architecture(
            Qwen3MoeConfig(
                **sizes(head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
            ),
            "experts, normalised weights of the chosen ones",
            ATTENTION,
            parameters=EXPERTS,
        ),
        "Mixtral": Architecture(
            MixtralConfig(**sizes(num_local_experts=4, num_experts_per_tok=2)),
            "experts that its files name one by one",
            ATTENTION,
            parameters=EXPERTS,
        ),
    }
)
