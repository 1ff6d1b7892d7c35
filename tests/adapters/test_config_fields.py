"""Every field that PEFT's LoRA has is honoured, refused or without effect, as the docs say."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from peft import LoraConfig
from tests.adapters import build
from tests.adapters.build import Q1
from tests.adapters.kinds import APART
from tests.engine.fidelity_cases import CASES

from loraplex.adapters.checkpoint import inspect
from loraplex.adapters.config_reader import HARMLESS, parse
from loraplex.adapters.errors import CheckpointInvalid

ROOT = Path(__file__).parents[2]
FIELDS = {field.name for field in fields(LoraConfig)}
# A value of each field that is not its default.
VALUES = {
    "alora_invocation_tokens": [3, 4],
    "alpha_pattern": {"q_proj": 3},
    "arrow_config": {"top_k": 2},
    "auto_mapping": {"base_model_class": "LlamaForCausalLM"},
    "base_model_name_or_path": "somewhere/else",
    "bias": "all",
    "corda_config": {"corda_method": "kpm"},
    "ensure_weight_tying": True,
    "eva_config": {"rho": 3.0},
    "exclude_modules": [Q1],
    "fan_in_fan_out": True,
    "inference_mode": True,
    "init_lora_weights": "pissa",
    "kasa_config": {"beta": 1.0},
    "layer_replication": [[0, 2], [1, 2]],
    "layers_pattern": ["blocks"],
    "layers_to_transform": [0],
    "loftq_config": {"loftq_bits": 4},
    "lora_alpha": 3,
    "lora_bias": True,
    "lora_dropout": 0.1,
    "lora_ga_config": {"direction": "random"},
    "megatron_config": {"hidden_size": 4},
    "megatron_core": "megatron.other",
    "modules_to_save": ["lm_head"],
    "monteclora_config": {"num_samples": 4},
    "peft_type": "LOHA",
    "peft_version": "0.1.0",
    "qalora_group_size": 8,
    "r": 3,
    "rank_pattern": {"q_proj": 3},
    "revision": "v2",
    "runtime_config": {"ephemeral_gpu_offload": True},
    "target_modules": [Q1],
    "target_parameters": ["experts.up"],
    "task_type": "SEQ_CLS",
    "trainable_token_indices": [3],
    "use_bdlora": {"nblocks": 2},
    "use_dora": True,
    "use_qalora": True,
    "use_rslora": True,
    "velora_config": {"num_groups": 2},
}
NEEDED = {"layers_pattern": {"layers_to_transform": [0, 1]}}
HONOURED, REFUSED, NO_EFFECT = "honoured", "refused", "no effect"


def outcome(folder, changes):
    """What is served of an adapter of two pairs with these fields, or why nothing is."""
    try:
        checkpoint = inspect(build.save(folder, changes), APART)
    except CheckpointInvalid as error:
        return error.problems
    return checkpoint.digest, checkpoint.modules


def treatment(field, folder):
    """How a field is treated, by what its value changes."""
    needed = NEEDED.get(field, {})
    changes = {**needed, field: VALUES[field]}
    problems = parse(json.dumps({**build.CONFIG, **changes}).encode()).problems
    if problems:
        assert [problem.field for problem in problems] == [field]
        return REFUSED
    if outcome(folder / "with", changes) != outcome(folder / "without", needed):
        assert field not in HARMLESS
        return HONOURED
    assert HARMLESS[field]
    return NO_EFFECT


def table(heading, text):
    rows = re.search(r"\n((?:\|.*\n)+)", text[text.index(f"{heading}\n") :])[1].splitlines()[2:]
    return {cells[0].strip("`"): cells[1:] for cells in map(cells_of, rows)}


def cells_of(row):
    return [cell.strip() for cell in row.strip("|").split(" | ")]


@pytest.fixture(scope="module")
def documented():
    """Treatment and proof of each field, and the tests that the proofs name."""
    text = (ROOT / "docs/adapters.md").read_text()
    return table("## Fields of adapter_config.json", text), table("### Proofs", text)


def test_there_is_a_value_of_each_field_of_the_peft_that_is_installed():
    assert VALUES.keys() == FIELDS


@pytest.mark.parametrize("field", VALUES)
def test_each_field_is_honoured_refused_or_without_effect_as_documented(
    field, tmp_path, documented
):
    rows, _ = documented
    assert rows[field][0].startswith(treatment(field, tmp_path))


def test_the_documented_fields_are_those_of_peft(documented):
    rows, _ = documented
    assert rows.keys() == FIELDS


@pytest.mark.parametrize("field", VALUES)
def test_what_proves_a_treatment_is_a_test_that_exists(field, documented):
    rows, proofs = documented
    for name in rows[field][1].split(", "):
        path, _, function = proofs[name][0].strip("`").partition("::")
        assert re.search(rf"^(?:async )?def {function}\(", (ROOT / path).read_text(), re.MULTILINE)


@pytest.mark.parametrize("field", VALUES)
def test_a_field_that_is_proved_by_output_is_in_an_adapter_whose_output_is_compared(
    field, documented
):
    rows, _ = documented
    if "fidelity" in rows[field][1].split(", "):
        assert any(field in case.config for case in CASES.values())
