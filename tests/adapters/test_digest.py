import hashlib
import json

import numpy as np
import pytest
from tests.adapters import build
from tests.adapters.build import Q0, Q1
from tests.adapters.kinds import APART, HEAD, SAVED, TOKENS, TRAINED, tensor, under

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.checkpoint import inspect
from loraplex.adapters.digest import is_digest
from loraplex.adapters.tensor_file import TensorEntry

HEAD_SAVED = under(HEAD, weight=tensor(7, 4))


@pytest.fixture
def digest(tmp_path):
    """Digest of an adapter with these config fields and tensors."""

    def compute(config=None, content=None):
        return inspect(build.save(tmp_path, config, content), build.base()).digest

    return compute


def fixed_tensors():
    return {
        f"base_model.model.{module}.lora_{side}.weight": np.arange(size, dtype=np.float32).reshape(
            shape
        )
        for module in (Q1, Q0)
        for side, size, shape in (("A", 8, (2, 4)), ("B", 6, (3, 2)))
    }


def length(number):
    return number.to_bytes(8, "little")


def by_formula(canonical_config: bytes, content):
    parts = [b"loraplex adapter 1\0", length(len(canonical_config)), canonical_config]
    for name in sorted(content):
        array = content[name]
        parts += [length(len(name)), name.encode(), length(3), b"F32"]
        parts += [length(2), *map(length, array.shape), length(array.nbytes), array.tobytes()]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def test_it_follows_the_documented_formula(digest):
    assert digest(content=fixed_tensors()) == by_formula(b'{"lora_alpha":6}', fixed_tensors())


def test_it_never_changes(digest):
    fixed = "37a40520cbf2fb758d8adb2c79a3b194987d56a9bb2a77e15bbf43943407c323"
    assert digest(content=fixed_tensors()) == fixed


def test_its_config_is_compact_sorted_and_without_defaults(digest):
    rules = {"layers.1.self_attn.q_proj": 4, "q_proj": 2.5}
    found = digest({"use_rslora": True, "lora_alpha": 8, "alpha_pattern": rules}, fixed_tensors())
    config = b'{"alpha_pattern":[["layers.1.self_attn.q_proj",4],["q_proj",2.5]],"use_rslora":true}'
    assert found == by_formula(config, fixed_tensors())


def test_fields_beside_the_pairs_join_it_in_their_canonical_form(tmp_path):
    content = build.tensors() | TOKENS
    fields = {"trainable_token_indices": {"embed_tokens": [5, 3]}, "ensure_weight_tying": True}
    found = inspect(build.save(tmp_path, fields, content), APART).digest
    config = (
        b'{"ensure_weight_tying":true,"lora_alpha":6,'
        b'"trainable_token_indices":[["embed_tokens",[5,3]]]}'
    )
    assert found == by_formula(config, content)


@pytest.mark.parametrize(
    ("fields", "more", "others"),
    [
        (TRAINED, TOKENS, {"trainable_token_indices": [5, 3]}),
        (
            {"modules_to_save": ["embed_tokens"]},
            SAVED | HEAD_SAVED,
            {"modules_to_save": ["lm_head"]},
        ),
        ({"alora_invocation_tokens": [1]}, {}, {"alora_invocation_tokens": [1, 1]}),
    ],
)
def test_what_the_same_tensors_are_used_for_changes_it(tmp_path, fields, more, others):
    content = build.tensors() | more
    one, other = (
        inspect(build.save(tmp_path, config, content), APART).digest for config in (fields, others)
    )
    assert one != other


def test_the_order_of_rules_counts_because_the_first_wins(digest):
    rules = {"q_proj": 2, ".*q_proj": 3}
    assert digest({"alpha_pattern": rules}) != digest(
        {"alpha_pattern": dict(reversed(rules.items()))}
    )


@pytest.mark.parametrize(
    "config",
    [
        {"lora_alpha": 6.0},
        {"lora_dropout": 0.5, "base_model_name_or_path": "x", "inference_mode": True},
        {"target_modules": [Q1, Q0]},
        {"target_modules": r".*q_proj"},
    ],
)
def test_what_does_not_change_the_output_does_not_change_it(digest, config):
    assert digest(config) == digest()


@pytest.mark.parametrize(
    "config", [{"lora_alpha": 7}, {"use_rslora": True}, {"alpha_pattern": {"q_proj": 1}}]
)
def test_a_config_that_changes_the_output_changes_it(digest, config):
    assert digest(config) != digest()


def test_every_bit_of_every_tensor_changes_it(digest):
    seen = {digest(content=fixed_tensors())}
    for name in fixed_tensors():
        content = fixed_tensors()
        content[name].view(np.uint32)[0, 0] ^= 1
        seen.add(digest(content=content))
    assert len(seen) == 5


def test_swapped_tensors_change_it(digest):
    content = build.tensors()
    first, second = (f"base_model.model.{module}.lora_A.weight" for module in (Q0, Q1))
    content[first], content[second] = content[second], content[first]
    assert digest(content=content) != digest()


def test_the_dtype_counts_even_where_the_bytes_are_equal(digest):
    zeros = {name: np.zeros_like(array) for name, array in build.tensors().items()}
    halves = {name: array.astype(np.float16) for name, array in zeros.items()}
    assert digest(content=zeros) != digest(content=halves)


def test_the_order_of_tensors_in_the_file_does_not_count(tmp_path, digest):
    expected = digest(content=fixed_tensors())
    names = sorted(fixed_tensors(), reverse=True)
    header, data = {}, b""
    for name in names:
        array = fixed_tensors()[name]
        span = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": span}
        data += array.tobytes()
    text = json.dumps(header).encode()
    (tmp_path / "adapter_model.safetensors").write_bytes(length(len(text)) + text + data)
    assert inspect(tmp_path, build.base()).digest == expected


def test_a_large_tensor_is_read_whole(tmp_path, digest):
    width = 300_000  # more than one chunk of reading
    base = BaseShapes.of([TensorEntry("q_proj.weight", "F32", (1, width), 0, 0)], tied=False)
    content = {
        "base_model.model.q_proj.lora_A.weight": np.arange(width, dtype=np.float32).reshape(1, -1),
        "base_model.model.q_proj.lora_B.weight": np.ones((1, 1), np.float32),
    }
    build.save(tmp_path, {"r": 1}, content)
    assert inspect(tmp_path, base).digest == by_formula(b'{"lora_alpha":6}', content)


@pytest.mark.parametrize(
    "text", ["", "a" * 63, "A" * 64, "g" * 64, "../" + "a" * 61, "a" * 64 + "\n"]
)
def test_only_64_lower_case_hex_digits_are_a_digest(text):
    assert not is_digest(text)
    assert is_digest("0123456789abcdef" * 4)
