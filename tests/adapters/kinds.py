"""Adapters with all that PEFT can put beside a pair, on a base model small enough to read."""

from dataclasses import replace

import numpy as np
from tests.adapters.build import IN, OUT, Q0, Q1

from loraplex.adapters.base_shapes import BaseShapes

ROWS = 7
EMBEDDING, HEAD, EXPERTS = "model.embed_tokens", "lm_head", "model.layers.0.mlp.experts"
TIED = BaseShapes(
    linears={Q0: (OUT, IN), Q1: (OUT, IN), HEAD: (ROWS, IN)},
    embeddings={EMBEDDING: (ROWS, IN), "model.embed_positions": (ROWS, IN)},
    heads=frozenset({HEAD}),
    token_embedding=EMBEDDING,
    is_tied=True,
    biases={Q0: OUT, Q1: OUT, "model.norm": IN},
    parameters={f"{EXPERTS}.up": (2, 5, IN), f"{EXPERTS}.down": (2, IN, 5)},
)
APART = replace(TIED, is_tied=False)


def tensor(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def under(module, **parts):
    names = {name.replace("__", "."): value for name, value in parts.items()}
    return {f"base_model.model.{module}.{name}": value for name, value in names.items()}


MAGNITUDES = under(Q0, lora_magnitude_vector=tensor(OUT)) | under(
    Q1, lora_magnitude_vector=tensor(OUT)
)
BIASES_OF_B = under(Q0, lora_B__bias=tensor(OUT)) | under(Q1, lora_B__bias=tensor(OUT))
BIASES = under(Q0, base_layer__bias=tensor(OUT)) | under(Q1, base_layer__bias=tensor(OUT))
ALL_BIASES = BIASES | under("model.norm", bias=tensor(IN))
EMBEDDED = under(EMBEDDING, lora_embedding_A=tensor(2, ROWS), lora_embedding_B=tensor(IN, 2))
HEAD_PAIR = under(HEAD, lora_A__weight=tensor(2, IN), lora_B__weight=tensor(ROWS, 2))
SAVED = under(EMBEDDING, weight=tensor(ROWS, IN))
TOKENS = under(EMBEDDING, token_adapter__trainable_tokens_delta=tensor(2, IN))
EXPERT_PAIRS = under(EXPERTS, lora_A__weight=tensor(4, 5), lora_B__weight=tensor(IN, 4)) | under(
    f"{EXPERTS}.base_layer", lora_A__weight=tensor(4, IN), lora_B__weight=tensor(5, 4)
)
BOTH = {"target_modules": ["q_proj", "embed_tokens"]}
WITH_HEAD = {"target_modules": ["q_proj", "lm_head"]}
TRAINED = {"trainable_token_indices": [3, 5]}
PARAMETERS = {"target_parameters": ["experts.up", "experts.down"]}

VALID = (
    ({}, {}),
    ({"use_dora": True}, MAGNITUDES),
    ({"lora_bias": True}, BIASES_OF_B),
    ({"bias": "lora_only"}, BIASES),
    ({"bias": "all"}, ALL_BIASES),
    (BOTH, EMBEDDED),
    (BOTH, EMBEDDED | under(EMBEDDING, base_layer__weight=tensor(ROWS, IN))),
    (WITH_HEAD, HEAD_PAIR),
    ({"modules_to_save": ["embed_tokens"]}, SAVED),
    (TRAINED, TOKENS),
    (PARAMETERS, EXPERT_PAIRS),
    ({"task_type": "CAUSAL_LM", "alora_invocation_tokens": [3, 4]}, {}),
)
"""Fields beside those of `build.CONFIG`, tensors beside those of `build.tensors()`."""
