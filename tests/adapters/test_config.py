import json

import pytest
from peft import LoraConfig
from tests.adapters import build

from loraplex.adapters.config import AdapterConfig
from loraplex.adapters.config_reader import parse

REFUSED = {
    "arrow_config": {"top_k": 2},
    "init_lora_weights": "pissa_niter_4",
    "kasa_config": {"beta": 1},
    "layer_replication": [[0, 2]],
    "megatron_config": {"a": 1},
    "monteclora_config": {"num_samples": 2},
    "peft_type": "LOHA",
    "task_type": "SEQ_CLS",
    "use_bdlora": {"nblocks": 2},
    "use_qalora": True,
    "velora_config": {"num_groups": 2},
}


# Quadratic time for it would be minutes.
LATE_DUPLICATE = json.dumps({str(i): 1 for i in range(80_000)})[:-1].encode() + b', "79999": 1}'


def problems(**fields):
    found = parse(json.dumps({**build.CONFIG, **fields}).encode()).problems
    return tuple(str(problem) for problem in found)


@pytest.mark.parametrize("field", REFUSED)
def test_a_field_that_changes_the_output_and_is_not_served_is_refused_by_name(field):
    found = problems(**{field: REFUSED[field]})
    assert len(found) == 1
    assert field in found[0]


@pytest.mark.parametrize("value", [1, 0, "on", [1], {"a": 1}, True])
def test_an_unknown_field_with_a_value_is_refused_by_name(value):
    assert "use_tomorrow" in problems(use_tomorrow=value)[0]


def test_how_a_base_weight_lies_in_memory_does_not_matter():
    assert problems(fan_in_fan_out=True) == problems(fan_in_fan_out=False) == ()


@pytest.mark.parametrize("value", [None, False, [], {}])
def test_an_unknown_field_that_is_off_is_accepted(value):
    assert problems(use_tomorrow=value) == ()


def test_every_field_that_peft_writes_by_default_is_accepted(tmp_path):
    LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM").save_pretrained(tmp_path)
    parsed = parse((tmp_path / "adapter_config.json").read_bytes())
    assert parsed.problems == ()
    assert parsed.config == AdapterConfig(target_modules=frozenset({"q_proj"}))


def test_settings_of_training_are_accepted():
    assert problems(lora_dropout=0.1, inference_mode=True, revision="x", peft_version="9") == ()


@pytest.mark.parametrize("init", [True, False, "gaussian", "eva", "orthogonal", "mica"])
def test_an_initialisation_that_leaves_the_base_alone_is_accepted(init):
    assert problems(init_lora_weights=init) == ()


@pytest.mark.parametrize("init", ["pissa", "olora", "corda", "loftq", "lora_ga", "new"])
def test_an_initialisation_that_alters_the_base_is_refused(init):
    assert "init_lora_weights" in problems(init_lora_weights=init)[0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("r", 0),
        ("r", 513),
        ("r", True),
        ("r", "8"),
        ("r", None),
        ("lora_alpha", "big"),
        ("lora_alpha", 1e300),
        ("use_rslora", "yes"),
        ("task_type", ["CAUSAL_LM"]),
        ("task_type", {"a": 1}),
        ("init_lora_weights", ["eva"]),
        ("init_lora_weights", {"a": 1}),
        ("rank_pattern", {"q_proj": 0}),
        ("rank_pattern", {"(?i)q": 2}),
        ("alpha_pattern", {"q_proj": None}),
        ("alpha_pattern", {"x" * 70_000: 1}),
        ("alpha_pattern", {rf"\w*{i}": 1 for i in range(257)}),
        ("rank_pattern", {f"[ab]{'x' * 900}{i}": 1 for i in range(10)}),
        ("rank_pattern", {f"q{i}": 1 for i in range(2049)}),
        ("target_modules", None),
        ("target_modules", []),
        ("target_modules", [1]),
        ("target_modules", "(q|v"),
        ("exclude_modules", r"(.)\2"),
        ("layers_to_transform", ["0"]),
        ("modules_to_save", ["q.*"]),
        ("modules_to_save", [""]),
        ("modules_to_save", [f"q{i}" for i in range(1025)]),
        ("target_parameters", "experts.up"),
        ("target_parameters", ["(a)"]),
        ("trainable_token_indices", [3, 3]),
        ("trainable_token_indices", [-1]),
        ("trainable_token_indices", list(range(65_537))),
        ("trainable_token_indices", {"lm_head": []}),
        ("trainable_token_indices", {f"e{i}": [1] for i in range(1025)}),
        ("alora_invocation_tokens", [-1]),
        ("bias", "some"),
        ("use_dora", 1),
        ("lora_bias", "yes"),
        ("ensure_weight_tying", "no"),
        ("layers_pattern", ["(a"]),
    ],
)
def test_a_value_out_of_range_or_of_another_type_is_refused_by_name(field, value):
    assert any(field in problem for problem in problems(**{field: value}))


def test_patterns_of_both_fields_are_counted_together():
    ranks, alphas = ({rf"{kind}\w*{i}": 2 for i in range(200)} for kind in "ab")
    assert problems(rank_pattern=ranks) == problems(alpha_pattern=alphas) == ()
    assert "400 regular expressions" in problems(rank_pattern=ranks, alpha_pattern=alphas)[0]


def test_a_large_model_may_have_a_rank_and_an_alpha_for_each_of_its_modules():
    each = {f"model.layers.{i}.mlp.m{j}_proj": 4 for i in range(120) for j in range(7)}
    assert problems(rank_pattern=each, alpha_pattern=each) == ()


def test_an_invocation_has_up_to_64_tokens_and_a_longer_one_is_refused_by_name():
    def of(length):
        return problems(task_type="CAUSAL_LM", alora_invocation_tokens=list(range(length)))

    assert of(64) == ()
    (problem,) = of(65)
    assert problem.startswith("alora_invocation_tokens")
    assert "holds 65 tokens; at most 64 are possible" in problem


def test_layers_beside_a_regex_are_refused():
    assert "layers_to_transform" in problems(target_modules=".*q_proj", layers_to_transform=[0])[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"use_dora": True, "lora_bias": True},
        {"use_dora": True, "alora_invocation_tokens": [1]},
        {"use_dora": True, "init_lora_weights": "mica"},
        {"lora_bias": True, "init_lora_weights": "gaussian"},
        {"target_parameters": ["up"], "use_dora": True},
        {"target_parameters": ["up"], "lora_bias": True},
        {"target_parameters": ["up"], "lora_dropout": 0.1},
        {"target_parameters": ["up"], "fan_in_fan_out": True},
        {"target_parameters": ["up"], "init_lora_weights": "mica"},
        {"target_modules": "q_proj", "layers_to_transform": [1]},
        {"layers_pattern": "h"},
        {"alora_invocation_tokens": [1], "task_type": None},
        {"alora_invocation_tokens": [1], "bias": "all"},
        {"alora_invocation_tokens": [1], "modules_to_save": ["lm_head"]},
        {"alora_invocation_tokens": [1], "trainable_token_indices": [1]},
    ],
    ids=" ".join,
)
def test_fields_that_cannot_be_combined_are_refused(fields):
    assert len(problems(**fields)) == 1


def test_all_problems_are_reported_at_once():
    assert len(problems(use_qalora=True, bias="some", r=0, new_field=3)) == 4


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{", b'{"r": NaN}', b"\xff", b'{"r": 1, "r": 2}', b"[" * 100_000, LATE_DUPLICATE],
    ids=["empty", "list", "open", "nan", "not utf-8", "duplicate key", "deep", "late duplicate"],
)
def test_what_is_not_a_json_object_is_one_problem(data):
    assert len(parse(data).problems) == 1
