"""Adapters of every kind, as PEFT itself saves them, are claimed tensor by tensor."""

import warnings
from collections import Counter

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests import tiny_models
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.checkpoint import inspect
from loraplex.adapters.claims import Role, claim
from loraplex.adapters.config_reader import parse
from loraplex.adapters.tensor_file import read_entries

LAYERS = 3
EMBEDDING, HEAD = "model.embed_tokens", "lm_head"
Q = [f"model.layers.{i}.self_attn.q_proj" for i in range(LAYERS)]
EXPERTS = [f"model.layers.{i}.mlp.experts" for i in range(LAYERS)]


def llama():
    return tiny_models.llama_config(num_hidden_layers=LAYERS, attention_bias=True)


def tied():
    return tiny_models.qwen3_config(num_hidden_layers=LAYERS)


def moe():
    sizes = tiny_models.sizes(
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48, head_dim=16
    )
    return Qwen3MoeConfig(**sizes, tie_word_embeddings=False)


def base_of(model):
    """Shapes as a worker tells them, by the modules of the model."""
    linears, embeddings, biases, parameters = {}, {}, {}, {}
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            linears[path] = tuple(module.weight.shape)
        if isinstance(module, torch.nn.Embedding):
            embeddings[path] = tuple(module.weight.shape)
        if getattr(module, "bias", None) is not None:
            biases[path] = len(module.bias)
        if path.endswith(".experts"):
            parameters |= {f"{path}.{n}": tuple(p.shape) for n, p in module.named_parameters()}
    is_tied = model.config.tie_word_embeddings
    heads = frozenset({HEAD})
    return BaseShapes(linears, embeddings, heads, EMBEDDING, is_tied, biases, parameters)


@pytest.fixture
def save(tmp_path):
    """Save an adapter as PEFT does by default; return its folder and the base's shapes."""

    def make(config, vocabulary=None, **fields):
        tiny_models.save_model(tmp_path / "model", config())
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
        shapes = base_of(model)
        if vocabulary:
            model.resize_token_embeddings(vocabulary)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice on tied weights and on saved embeddings
            peft_model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **fields))
            peft_model.save_pretrained(tmp_path / "adapter")
        return tmp_path / "adapter", shapes

    return make


def claims_of(folder, shapes):
    parsed = parse((folder / "adapter_config.json").read_bytes())
    assert parsed.problems == ()
    entries = read_entries(folder / "adapter_model.safetensors")
    claims, problems = claim(entries, parsed.config, shapes)
    assert problems == []
    return {path: {role: entry.shape for role, entry in of.items()} for path, of in claims.items()}


PAIR = {Role.LORA_A: 3, Role.LORA_B: 3}
EMBEDDED = {Role.EMBEDDING_A: 1, Role.EMBEDDING_B: 1, Role.BASE_WEIGHT: 1}
BOTH = ["q_proj", "embed_tokens"]
INDICES = "trainable_token_indices"
CASES = {
    "a pair": (llama, {}, PAIR),
    "DoRA": (llama, {"use_dora": True}, PAIR | {Role.MAGNITUDE: 3}),
    "bias in B": (llama, {"lora_bias": True}, PAIR | {Role.LORA_B_BIAS: 3}),
    "all biases": (llama, {"bias": "all"}, PAIR | {Role.BASE_BIAS: 12}),
    "biases of targets": (llama, {"bias": "lora_only"}, PAIR | {Role.BASE_BIAS: 3}),
    "no biases to train": (tied, {"bias": "all"}, PAIR),
    "embedding": (llama, {"target_modules": BOTH}, PAIR | EMBEDDED),
    "embedding with DoRA": (
        llama,
        {"target_modules": BOTH, "use_dora": True},
        PAIR | EMBEDDED | {Role.MAGNITUDE: 4},
    ),
    "head": (
        llama,
        {"target_modules": ["lm_head"]},
        dict.fromkeys(PAIR, 1) | {Role.BASE_WEIGHT: 1},
    ),
    "tied head": (
        tied,
        {"target_modules": ["lm_head"]},
        dict.fromkeys(PAIR, 1) | {Role.BASE_WEIGHT: 1},
    ),
    "tied embedding": (tied, {"target_modules": BOTH}, PAIR | EMBEDDED),
    "tied embedding and head": (
        tied,
        {"target_modules": BOTH, "ensure_weight_tying": True},
        {Role.LORA_A: 4, Role.LORA_B: 4} | EMBEDDED | {Role.BASE_WEIGHT: 2},
    ),
    "tied, by pattern": (
        tied,
        {"target_modules": r".*(q_proj|embed_tokens)", "ensure_weight_tying": True},
        {Role.LORA_A: 4, Role.LORA_B: 4} | EMBEDDED | {Role.BASE_WEIGHT: 2},
    ),
    "saved embedding and head": (
        llama,
        {"modules_to_save": ["lm_head", "embed_tokens"]},
        PAIR | {Role.SAVED_WEIGHT: 2},
    ),
    "saved tied embedding": (
        tied,
        {"modules_to_save": ["embed_tokens"]},
        PAIR | {Role.SAVED_WEIGHT: 1},
    ),
    "saved, tied by PEFT": (
        tied,
        {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        PAIR | {Role.SAVED_WEIGHT: 2},
    ),
    "saved layers with biases": (
        llama,
        {"modules_to_save": ["k_proj"], "bias": "all"},
        PAIR | {Role.SAVED_WEIGHT: 3, Role.SAVED_BIAS: 3, Role.BASE_BIAS: 9},
    ),
    "tokens": (llama, {INDICES: [5, 3]}, PAIR | {Role.TOKEN_ROWS: 1}),
    "tokens of both": (
        llama,
        {INDICES: {"embed_tokens": [3, 5], "lm_head": [1]}},
        PAIR | {Role.TOKEN_ROWS: 2},
    ),
    "tokens of a tied embedding": (tied, {INDICES: [3]}, PAIR | {Role.TOKEN_ROWS: 2}),
    "tokens of a tied head": (tied, {INDICES: {"lm_head": [3]}}, PAIR | {Role.TOKEN_ROWS: 1}),
    "the same tokens of a tied pair": (
        tied,
        {INDICES: {"embed_tokens": [3], "lm_head": [3]}},
        PAIR | {Role.TOKEN_ROWS: 2},
    ),
    "other tokens of a tied pair": (
        tied,
        {INDICES: {"embed_tokens": [3], "lm_head": [1]}},
        PAIR | {Role.TOKEN_ROWS: 2},
    ),
    "activated": (llama, {"alora_invocation_tokens": [3, 4]}, PAIR),
    "experts": (
        moe,
        {"target_parameters": ["experts.down_proj", "experts.gate_up_proj"]},
        PAIR | {Role.PARAMETER_A: 6, Role.PARAMETER_B: 6},
    ),
}
MORE_TOKENS = {
    "grown": (llama, {}, PAIR | {Role.BASE_WEIGHT: 2}),
    "grown, tied": (tied, {}, PAIR | {Role.BASE_WEIGHT: 2}),
    "grown, saved": (
        llama,
        {"modules_to_save": ["lm_head", "embed_tokens"]},
        PAIR | {Role.SAVED_WEIGHT: 2, Role.BASE_WEIGHT: 2},
    ),
    "grown, saved, tied": (
        tied,
        {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        PAIR | {Role.SAVED_WEIGHT: 2, Role.BASE_WEIGHT: 2},
    ),
    "grown, new tokens": (
        llama,
        {INDICES: [321]},
        PAIR | {Role.TOKEN_ROWS: 1, Role.BASE_WEIGHT: 2},
    ),
    "grown, new tokens, tied": (
        tied,
        {INDICES: [321]},
        PAIR | {Role.TOKEN_ROWS: 2, Role.BASE_WEIGHT: 2},
    ),
    "grown, tied embedding": (tied, {"target_modules": BOTH}, PAIR | EMBEDDED),
}


def roles(claims):
    return Counter(role for of in claims.values() for role in of)


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_that_peft_saves_is_claimed_and_fits(save, case):
    config, fields, expected = CASES[case]
    folder, shapes = save(config, **{"target_modules": ["q_proj"], **fields})
    assert roles(claims_of(folder, shapes)) == expected
    assert inspect(folder, shapes).rank == 8


@pytest.mark.parametrize("case", MORE_TOKENS)
def test_an_added_vocabulary_is_claimed_and_fits(save, case):
    config, fields, expected = MORE_TOKENS[case]
    folder, shapes = save(config, vocabulary=330, **{"target_modules": ["q_proj"], **fields})
    assert roles(claims_of(folder, shapes)) == expected
    assert inspect(folder, shapes).rank == 8


def test_nested_pairs_go_to_the_parameters_that_they_wrap(save):
    parameters = ["experts.down_proj", "experts.gate_up_proj"]
    claims = claims_of(*save(moe, target_modules=[], target_parameters=parameters))
    assert claims[f"{EXPERTS[0]}.gate_up_proj"] == {
        Role.PARAMETER_A: (32, 64),
        Role.PARAMETER_B: (96, 32),
    }
    assert claims[f"{EXPERTS[0]}.down_proj"] == {
        Role.PARAMETER_A: (32, 48),
        Role.PARAMETER_B: (64, 32),
    }


def test_rows_of_a_tied_embedding_are_the_heads_too(save):
    claims = claims_of(*save(tied, target_modules=["q_proj"], trainable_token_indices=[3, 5]))
    assert claims[HEAD][Role.TOKEN_ROWS] == claims[EMBEDDING][Role.TOKEN_ROWS] == (2, 64)


def test_without_a_base_model_tensors_are_claimed_by_their_names_alone(save):
    folder, _ = save(llama, target_modules=BOTH, bias="all")
    assert roles(claims_of(folder, None)) == PAIR | EMBEDDED | {Role.BASE_BIAS: 12}
