"""A module that differs from a known form in one detail is not taken for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import tiny_models
from tests.engine.fused_model import Counts, fused_counts, step_logits
from torch import Tensor
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaForCausalLM,
    LlamaMLP,
    LlamaModel,
    LlamaRMSNorm,
)

from loraplex.engine.config import ModelConfig
from loraplex.engine.model import load_model
from loraplex.kernels.cpu_kernels import CpuKernels

_attend = LlamaAttention.forward
_decode = LlamaDecoderLayer.forward
_rotate = modeling_llama.apply_rotary_pos_emb
_norm = LlamaRMSNorm.forward
_run = LlamaModel.forward
_compute = LlamaForCausalLM.forward


def gate_and_up_exchanged(self: Any, x: Tensor) -> Tensor:
    return self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x))


def gate_bounded(self: Any, x: Tensor) -> Tensor:
    gate = self.gate_proj(x).clamp(max=7.0)
    return self.down_proj(self.act_fn(gate) * self.up_proj(x))


def gate_scaled(self: Any, x: Tensor) -> Tensor:
    return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x) * 1.0001)


def norm_of_centred(self: Any, x: Tensor) -> Tensor:
    return _norm(self, x - x.mean(-1, keepdim=True))


def norm_with_eps_outside(self: Any, x: Tensor) -> Tensor:
    return self.weight * x / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.variance_epsilon)


def norm_with_offset(self: Any, x: Tensor) -> Tensor:
    return _norm(self, x) + _norm(self, x) / self.weight


def norm_with_other_offset(self: Any, x: Tensor) -> Tensor:
    return _norm(self, x) + 1.001 * _norm(self, x) / self.weight


def residual_scaled(self: Any, hidden_states: Tensor, **options: Any) -> Tensor:
    return hidden_states + 0.999 * (_decode(self, hidden_states, **options) - hidden_states)


def gated_layer_beside_attention(self: Any, hidden_states: Tensor, **options: Any) -> Tensor:
    attended, _ = self.self_attn(self.input_layernorm(hidden_states), **options)
    return hidden_states + attended + self.mlp(self.post_attention_layernorm(hidden_states))


def residual_normalised(self: Any, hidden_states: Tensor, **options: Any) -> Tensor:
    return _decode(self, self.input_layernorm(hidden_states), **options)


def attention_by_position(self: Any, hidden_states: Tensor, **options: Any) -> Any:
    is_far = options["position_ids"][..., None] > 4096
    return _attend(self, hidden_states * (1 + is_far), **options)


def attention_gated(self: Any, hidden_states: Tensor, **options: Any) -> Any:
    attended, weights = _attend(self, hidden_states, **options)
    return attended * torch.sigmoid(hidden_states), weights


def pairs_side_by_side(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **_: Any) -> Any:
    def turned(x: Tensor) -> Tensor:
        even, odd = x[..., ::2], x[..., 1::2]
        return x * cos[:, None] + torch.stack([-odd, even], -1).flatten(-2) * sin[:, None]

    return turned(q), turned(k)


def turned_backwards(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **_: Any) -> Any:
    return _rotate(q, k, cos, -sin)


def turned_and_bounded(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **_: Any) -> Any:
    q, k = _rotate(q, k, cos, sin)
    return q.clamp(-8, 8), k


def not_turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **_: Any) -> Any:
    return q, k


def only_queries_turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **_: Any) -> Any:
    return _rotate(q, k, cos, sin)[0], k


def embedding_scaled(factor: float) -> Callable[..., Any]:
    def run(self: Any, input_ids: Tensor, **options: Any) -> Any:
        options["inputs_embeds"] = factor * self.embed_tokens(input_ids)
        return _run(self, **options)

    return run


def hidden_states_normalised_twice(self: Any, *inputs: Any, **options: Any) -> Any:
    output = _run(self, *inputs, **options)
    output.last_hidden_state = self.norm(output.last_hidden_state)
    return output


def positions_moved(self: Any, position_ids: Tensor, **options: Any) -> Any:
    return _run(self, position_ids=2 * position_ids, **options)


def logits_scaled(factor: float) -> Callable[..., Any]:
    def compute(self: Any, *inputs: Any, **options: Any) -> Any:
        output = _compute(self, *inputs, **options)
        output.logits = factor * output.logits
        return output

    return compute


def one_logit_missing(self: Any, *inputs: Any, **options: Any) -> Any:
    output = _compute(self, *inputs, **options)
    output.logits[..., 3] -= 1
    return output


def logits_bounded(self: Any, *inputs: Any, **options: Any) -> Any:
    output = _compute(self, *inputs, **options)
    output.logits = 900 * torch.tanh(output.logits / 900)
    return output


Mutant = tuple[object, Callable[..., Any], Counts]

# Parts are compared in float32 in any case, and bfloat16 rounds details of the others away.
FLOAT32_MUTANTS: list[Mutant] = [
    (LlamaMLP, gate_and_up_exchanged, (3, 3, 0, 1)),
    (LlamaMLP, gate_bounded, (3, 3, 0, 1)),
    (LlamaMLP, gate_scaled, (3, 3, 0, 1)),
    (LlamaRMSNorm, norm_with_offset, (3, 3, 3, 1)),
    (LlamaDecoderLayer, residual_scaled, (0, 3, 3, 0)),
    (LlamaDecoderLayer, gated_layer_beside_attention, (0, 3, 3, 0)),
    (LlamaDecoderLayer, residual_normalised, (0, 3, 3, 0)),
    (LlamaAttention, attention_by_position, (3, 0, 3, 0)),
    (LlamaAttention, attention_gated, (3, 0, 3, 0)),
    (modeling_llama, pairs_side_by_side, (3, 0, 3, 0)),
    (modeling_llama, turned_backwards, (3, 0, 3, 0)),
    (modeling_llama, turned_and_bounded, (3, 0, 3, 0)),
    (modeling_llama, not_turned, (3, 3, 3, 1)),
    (modeling_llama, only_queries_turned, (3, 0, 3, 0)),
    (LlamaRMSNorm, norm_with_other_offset, (0, 3, 3, 0)),
    (LlamaModel, embedding_scaled(1.001), (3, 3, 3, 0)),
]
MUTANTS: list[Mutant] = [
    (LlamaRMSNorm, norm_of_centred, (0, 3, 3, 0)),
    (LlamaRMSNorm, norm_with_eps_outside, (0, 3, 3, 0)),
    (LlamaModel, embedding_scaled(1.05), (3, 3, 3, 0)),
    (LlamaModel, embedding_scaled(1.3), (3, 3, 3, 0)),
    (LlamaModel, hidden_states_normalised_twice, (3, 3, 3, 0)),
    (LlamaModel, positions_moved, (3, 3, 3, 0)),
    (LlamaForCausalLM, logits_bounded, (3, 3, 3, 0)),
    (LlamaForCausalLM, logits_scaled(1.04), (3, 3, 3, 0)),
    (LlamaForCausalLM, logits_scaled(0.96), (3, 3, 3, 0)),
    (LlamaForCausalLM, one_logit_missing, (3, 3, 3, 0)),
]
TOLERANCES = {"float32": 1e-5, "bfloat16": 5e-2}
"""Of logits, over the largest."""


@pytest.mark.parametrize(
    ("dtype", "owner", "mutant", "counts"),
    [
        *(("float32", *mutant) for mutant in (*FLOAT32_MUTANTS, *MUTANTS)),
        *(("bfloat16", *mutant) for mutant in MUTANTS),
    ],
    ids=lambda v: getattr(v, "__qualname__", None),
)
def test_a_detail_that_differs_is_seen(
    dtype: str,
    owner: object,
    mutant: Callable[..., Any],
    counts: Counts,
    tmp_path: Path,
    compiled_kernels: CpuKernels,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "apply_rotary_pos_emb" if owner is modeling_llama else "forward"
    monkeypatch.setattr(owner, name, mutant)
    folder = tiny_models.save_model(tmp_path / "model", tiny_models.llama_config())
    config = ModelConfig(folder, "tiny", "cpu", dtype)
    own, ours = load_model(config), load_model(config, compiled_kernels)
    assert fused_counts(ours.network) == counts
    expected = step_logits(own)
    assert (step_logits(ours) - expected).abs().max() <= TOLERANCES[dtype] * expected.abs().max()


@pytest.mark.parametrize(
    ("activation", "is_known"),
    [
        ("silu", True),
        ("gelu_pytorch_tanh", True),
        ("gelu_new", True),
        ("relu", True),
        ("relu2", True),
        ("gelu", False),
        ("quick_gelu", False),
        ("gelu_10", False),
        ("mish", False),
        ("sigmoid", False),
    ],
)
def test_an_activation_is_taken_for_itself_alone(
    activation: str, is_known: bool, tmp_path: Path, compiled_kernels: CpuKernels
) -> None:
    llama = tiny_models.llama_config(hidden_act=activation)
    folder = tiny_models.save_model(tmp_path / "model", llama)
    config = ModelConfig(folder, "tiny", "cpu", "float32")
    own, ours = load_model(config), load_model(config, compiled_kernels)
    assert fused_counts(ours.network) == (3, 3, 3 * is_known, 1)
    expected = step_logits(own)
    assert (step_logits(ours) - expected).abs().max() <= 1e-5 * expected.abs().max()
