"""What of a checkpoint does not fit its config or the base model is refused by name."""

import numpy as np
import pytest
from tests.adapters import build
from tests.adapters.build import IN, OUT, Q0, Q1
from tests.adapters.kinds import (
    ALL_BIASES,
    APART,
    BIASES,
    BIASES_OF_B,
    BOTH,
    EMBEDDED,
    EMBEDDING,
    EXPERT_PAIRS,
    EXPERTS,
    HEAD,
    MAGNITUDES,
    PARAMETERS,
    ROWS,
    SAVED,
    TIED,
    TOKENS,
    TRAINED,
    VALID,
    tensor,
    under,
)

from loraplex.adapters.checkpoint import MAX_PROBLEMS, inspect
from loraplex.adapters.errors import CheckpointInvalid, Problem
from loraplex.adapters.limits import Limits


@pytest.fixture
def check(tmp_path):
    """Inspect an adapter of these fields, with these tensors beside the two pairs."""

    def run(config, more=None, base=APART, limits=Limits()):  # noqa: B008  frozen
        content = {**build.tensors(), **(more or {})}
        content = {name: array for name, array in content.items() if array is not None}
        return inspect(build.save(tmp_path, config, content), base, limits)

    return run


@pytest.fixture
def refused(check):
    """The one reason to refuse an adapter."""

    def run(*given, **named):
        with pytest.raises(CheckpointInvalid) as caught:
            check(*given, **named)
        assert len(caught.value.problems) == 1, caught.value.problems
        return str(caught.value.problems[0])

    return run


@pytest.mark.parametrize(
    ("config", "more"),
    VALID,
)
def test_what_belongs_together_is_accepted(check, config, more):
    checkpoint = check(config, more)
    assert checkpoint.rank == 2
    assert {Q0, Q1} <= set(checkpoint.modules)


@pytest.mark.parametrize(
    ("config", "more", "reason"),
    [
        ({}, MAGNITUDES, "has lora_magnitude_vector, but use_dora is false"),
        ({"use_dora": True}, {}, "has no lora_magnitude_vector, which use_dora asks for"),
        (
            {"use_dora": True},
            MAGNITUDES | under(Q0, lora_magnitude_vector=tensor(OUT + 1)),
            r"(4,): the base model needs the shape (3,)",
        ),
        ({}, BIASES_OF_B, "has lora_B_bias, but lora_bias is false"),
        ({"lora_bias": True}, {}, "has no lora_B_bias, which lora_bias asks for"),
        ({}, BIASES, "has a bias, but bias is none"),
        ({"bias": "lora_only"}, ALL_BIASES, "model.norm: has a bias, but bias is lora_only"),
        ({"bias": "lora_only"}, {}, "has no bias, which bias=lora_only asks for"),
        ({"bias": "all"}, BIASES, "model.norm: has no bias, which bias=all asks for"),
        (
            {"bias": "all"},
            ALL_BIASES | under("model.router", bias=tensor(2)),
            "model.router: has a bias that the base model does not have",
        ),
        (BOTH, {}, "model.embed_tokens: targeted by the config but not in the file"),
        ({}, EMBEDDED, "model.embed_tokens: in the file but not targeted"),
        (
            BOTH,
            EMBEDDED | under(EMBEDDING, lora_embedding_A=tensor(2, ROWS + 1)),
            "lora_embedding_A is (2, 8)",
        ),
        (
            {"modules_to_save": ["embed_tokens"]},
            {},
            "model.embed_tokens: in modules_to_save but not in the file",
        ),
        (
            {"modules_to_save": ["embed_tokens"]},
            under(EMBEDDING, weight=tensor(ROWS - 1, IN)),
            "weight is (6, 4): the base model needs the shape (7, 4)",
        ),
        (
            {"modules_to_save": ["classifier"]},
            {},
            "modules_to_save is classifier: names no head, embedding or linear layer",
        ),
        (
            {"modules_to_save": ["k_proj", "lm_head"]},
            under(HEAD, weight=tensor(ROWS, IN)),
            "modules_to_save is k_proj",
        ),
        (
            {},
            SAVED | under(Q0, weight=tensor(OUT, IN)),
            f"{Q0}: holds a weight, but modules_to_save does not name it",
        ),
        (TRAINED, {}, "model.embed_tokens: has no rows, which trainable_token_indices asks for"),
        ({}, TOKENS, "model.embed_tokens: has rows, but trainable_token_indices does not name it"),
        (
            {"trainable_token_indices": [3, ROWS]},
            TOKENS,
            "trainable_token_indices is 7: the vocabulary has 7 tokens",
        ),
        ({"trainable_token_indices": [3]}, TOKENS, "(2, 4): the base model needs the shape (1, 4)"),
        (
            {"alora_invocation_tokens": [ROWS]},
            {},
            "alora_invocation_tokens is 7: the vocabulary has 7 tokens",
        ),
        (PARAMETERS, {}, "experts.down, model.layers.0.mlp.experts.up: targeted by the config"),
        (
            PARAMETERS,
            EXPERT_PAIRS | under(EXPERTS, lora_A__weight=tensor(2, 5)),
            "is (2, 5): the base model and rank 2 need the shape (4, 5)",
        ),
        (
            {"target_parameters": ["q_proj.weight"]},
            {},
            "target_parameters is q_proj.weight: no parameter of the base model that holds experts",
        ),
        (
            {},
            {f"base_model.model.{Q0}.lora_C.weight": tensor(2)},
            "lora_C: holds a weight, but modules_to_save does not name it",
        ),
        ({}, {"stray": tensor(2)}, "stray: not a tensor that PEFT's LoRA writes"),
        ({}, under(Q0, modules_to_save__weight=tensor(2)), "modules_to_save does not name this"),
    ],
)
def test_what_does_not_belong_together_is_refused_by_name(refused, config, more, reason):
    assert reason in refused(config, more)


def test_adapted_and_replaced_is_refused(check):
    config = {"modules_to_save": ["proj"]}  # any end of a name will do, as in PEFT
    with pytest.raises(CheckpointInvalid, match="in modules_to_save and a target"):
        check(config)


def test_a_target_named_in_modules_to_save_is_no_target(check):
    config = {"target_modules": ["q_proj"], "modules_to_save": ["layers.1.self_attn.q_proj"]}
    more = dict.fromkeys(build.pair(Q1)) | under(Q1, weight=tensor(OUT, IN), bias=tensor(OUT))
    assert check(config, more).modules == (Q0,)


def test_tokens_of_an_embedding_that_is_replaced_are_refused(check):
    config = {**TRAINED, "modules_to_save": ["embed_tokens"]}
    with pytest.raises(CheckpointInvalid, match="has token rows and is saved or a target"):
        check(config, TOKENS)


@pytest.mark.parametrize("name", ["lora_bias", "alora_invocation_tokens"])
def test_what_peft_cannot_do_on_embeddings_is_refused(check, name):
    value = [3] if name == "alora_invocation_tokens" else True
    more = EMBEDDED | (BIASES_OF_B if name == "lora_bias" else {})
    with pytest.raises(
        CheckpointInvalid, match=f"{name}: cannot be combined with a targeted embed"
    ):
        check({**BOTH, name: value}, more)


GROWN = under(EMBEDDING, weight=tensor(9, IN))
GROWN_HEAD = under(HEAD, weight=tensor(9, IN))


def test_a_grown_vocabulary_needs_embedding_and_head(check, refused):
    assert check({}, GROWN | GROWN_HEAD).rank == 2
    assert "weight is (9, 4): the base model needs the shape (7, 4)" in refused({}, GROWN)


def test_an_activated_adapter_cannot_have_a_grown_vocabulary(refused):
    found = refused({"alora_invocation_tokens": [3]}, GROWN | GROWN_HEAD)
    assert "alora_invocation_tokens: the adapter has 9 tokens, more than the base model" in found


def test_of_a_tied_pair_one_weight_tells_the_grown_vocabulary(check):
    assert check({}, GROWN, base=TIED).rank == 2


def test_new_tokens_lie_in_the_grown_vocabulary(check, refused):
    more = GROWN | GROWN_HEAD | TOKENS
    more.pop(f"base_model.model.{EMBEDDING}.weight")
    more |= under(EMBEDDING, token_adapter__base_layer__weight=tensor(9, IN))
    assert check({"trainable_token_indices": [3, 8]}, more)
    found = refused({"trainable_token_indices": [3, 9]}, more)
    assert "trainable_token_indices is 9: the vocabulary has 9 tokens" in found


TIE = {"ensure_weight_tying": True}


def test_copies_of_a_tied_weight_must_be_equal(check, refused):
    same = GROWN | under(HEAD, weight=tensor(9, IN))
    assert check({}, same, base=TIED)
    other = GROWN | under(HEAD, weight=tensor(9, IN, seed=1))
    assert "lm_head.weight: differs from base_model.model.model.embed_tokens.weight" in refused(
        {}, other, base=TIED
    )
    assert check({}, other, base=APART)


def test_tied_pairs_must_be_each_others_transpose(check, refused):
    a, b = EMBEDDED.values()
    same = EMBEDDED | under(HEAD, lora_A__weight=b.T.copy(), lora_B__weight=a.T.copy())
    assert check(BOTH | TIE, same, base=TIED)
    other = same | under(HEAD, lora_A__weight=b.T + 1)
    assert "lm_head.lora_A.weight: differs from" in refused(BOTH | TIE, other, base=TIED)


def test_an_untrained_adapter_is_accepted_with_a_warning(check):
    zeros = {name: np.zeros_like(a) for name, a in build.tensors().items() if "lora_B" in name}
    assert "every lora_B is zero" in check({}, zeros).warnings[0]
    minus = {name: -array for name, array in zeros.items()}
    assert len(check({}, minus).warnings) == 1
    assert check({}).warnings == ()


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        (Limits(max_rank=1), Problem("r", "2", "ranks up to 1 are allowed")),
        (
            Limits(max_targets=1),
            Problem("target_modules", "", "names 2 modules; at most 1 are allowed"),
        ),
    ],
)
def test_a_tenants_limits_are_told_by_field(check, limits, problem):
    with pytest.raises(CheckpointInvalid) as caught:
        check({}, limits=limits)
    assert caught.value.problems == (problem,)


def test_a_file_beyond_a_tenants_bytes_is_not_read(refused):
    assert "at most 100 are allowed" in refused({}, limits=Limits(max_bytes=100))


def test_the_rank_of_an_expert_counts_not_that_of_all_experts_together(check):
    assert check(PARAMETERS, EXPERT_PAIRS, limits=Limits(max_rank=2)).rank == 2


def test_a_refusal_has_a_bounded_number_of_reasons(check):
    strays = {f"stray.{number}": tensor(1) for number in range(MAX_PROBLEMS + 50)}
    with pytest.raises(CheckpointInvalid) as caught:
        check({}, strays)
    assert len(caught.value.problems) == MAX_PROBLEMS + 1
    assert "and 50 problems more" in str(caught.value.problems[-1])
