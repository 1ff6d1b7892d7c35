import json
import struct

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from tests.adapters import build
from tests.adapters.build import Q0, Q1

from loraplex.adapters import checkpoint as checkpoint_module
from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.checkpoint import inspect
from loraplex.adapters.errors import CheckpointInvalid
from loraplex.adapters.tensor_file import MAX_HEADER_BYTES, TensorEntry

TIED_PAIR = ("model.embed_tokens", "lm_head")
A0, B0 = f"base_model.model.{Q0}.lora_A.weight", f"base_model.model.{Q0}.lora_B.weight"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "adapter"


def problems(folder):
    with pytest.raises(CheckpointInvalid) as caught:
        inspect(folder, build.base())
    return [str(problem) for problem in caught.value.problems]


def problem(folder):
    found = problems(folder)
    assert len(found) == 1, found
    return found[0]


def write_file(folder, header, data=b""):
    """Write a tensor file byte by byte; `header` is JSON text or a value."""
    build.save(folder)
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "adapter_model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_a_valid_checkpoint_is_described(folder):
    checkpoint = inspect(build.save(folder), build.base())
    assert checkpoint.directory == folder
    assert checkpoint.modules == (Q0, Q1)
    assert checkpoint.rank == 2
    assert checkpoint.num_bytes == 2 * 4 * (2 * build.IN + build.OUT * 2)
    assert len(checkpoint.digest) == 64


def test_all_linear_leaves_the_head_out(folder):
    build.save(folder, {"target_modules": "all-linear"})
    assert inspect(folder, build.base()).modules == (Q0, Q1)


def test_its_rank_is_the_largest_of_its_modules(folder):
    content = {**build.pair(Q0), **build.pair(Q1, rank=5)}
    build.save(folder, {"rank_pattern": {"layers.1.self_attn.q_proj": 5}}, content)
    assert inspect(folder, build.base()).rank == 5


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_missing_file_is_named(folder, name):
    build.save(folder)
    (folder / name).unlink()
    assert name in problem(folder)


@pytest.mark.parametrize("name", ["adapter_model.bin", "Adapter_Model.BIN"])
def test_pickled_weights_are_refused_even_beside_safetensors(folder, name):
    build.save(folder)
    (folder / name).touch()
    assert "pickle" in problem(folder)


def test_all_problems_are_reported_at_once(folder):
    content = {**build.tensors(), "stray": np.zeros(2, np.float32)}
    content[B0] = np.full((build.OUT, 3), np.nan, np.float32)
    del content[f"base_model.model.{Q1}.lora_B.weight"]
    build.save(folder, {"use_qalora": True, "bias": "some"}, content)
    text = "\n".join(problems(folder))
    for part in ("use_qalora", "bias", "stray", "no lora_B", "NaN"):
        assert part in text


def test_a_tensor_that_nothing_claims_is_named(folder):
    build.save(folder, content={**build.tensors(), "model.score.weight": np.zeros(2, np.float32)})
    assert "model.score.weight" in problem(folder)


def test_a_weight_of_the_base_other_than_of_embedding_and_head_is_refused(folder):
    name = f"base_model.model.{Q0}.base_layer.weight"
    build.save(folder, content={**build.tensors(), name: np.zeros((3, 4), np.float32)})
    assert f"{Q0}: holds a weight, but modules_to_save does not name it" in problem(folder)


@pytest.mark.parametrize(("gone", "side"), [(A0, "no lora_A"), (B0, "no lora_B")])
def test_half_a_pair_is_refused(folder, gone, side):
    content = build.tensors()
    del content[gone]
    build.save(folder, content=content)
    assert any(side in text and Q0 in text for text in problems(folder))


def test_a_module_that_the_base_lacks_is_named(folder):
    content = {**build.tensors(), **build.pair("model.layers.2.self_attn.q_proj")}
    build.save(folder, content=content)
    assert "model.layers.2.self_attn.q_proj: not a linear layer" in problem(folder)


def test_a_targeted_embedding_without_tensors_is_named(folder):
    build.save(folder, {"target_modules": ["q_proj", "embed_tokens"]})
    assert "model.embed_tokens: targeted by the config but not in the file" in problem(folder)


def test_a_targeted_module_without_tensors_is_named(folder):
    build.save(folder, content=build.pair(Q0))
    assert Q1 in problem(folder)


def test_tensors_for_a_module_that_is_not_targeted_are_refused(folder):
    build.save(folder, {"layers_to_transform": [1]})
    assert f"{Q0}: in the file but not targeted" in problem(folder)


@pytest.mark.parametrize(
    ("name", "shape"), [(A0, (2, 5)), (A0, (3, 4)), (A0, (2,)), (B0, (4, 2)), (B0, (3, 1))]
)
def test_a_shape_that_fits_neither_base_nor_rank_is_refused(folder, name, shape):
    build.save(folder, content={**build.tensors(), name: np.zeros(shape, np.float32)})
    assert name in problem(folder)


def test_a_rank_other_than_the_patterns_say_is_refused(folder):
    build.save(folder, {"rank_pattern": {"layers.0.self_attn.q_proj": 3}})
    assert all("rank 3" in text for text in problems(folder))
    assert len(problems(folder)) == 2


@pytest.mark.parametrize("dtype", [np.float64, np.int8])
def test_another_dtype_is_refused(folder, dtype):
    build.save(folder, content={**build.tensors(), A0: np.zeros((2, 4), dtype)})
    assert A0 in problem(folder)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_value_that_is_not_finite_is_found_wherever_it_is(folder, dtype, value):
    build.save(folder)
    content = {
        name: torch.from_numpy(array).to(getattr(torch, dtype))
        for name, array in build.tensors().items()
    }
    content[B0][-1, -1] = value
    safetensors.torch.save_file(content, folder / "adapter_model.safetensors")
    assert B0 in problem(folder)


def test_a_value_that_is_not_finite_is_found_in_the_midst_of_a_large_tensor(folder):
    width = 300_000  # more than one chunk of reading
    base = BaseShapes.of([TensorEntry("q_proj.weight", "F32", (1, width), 0, 0)], tied=False)
    content = {
        "base_model.model.q_proj.lora_A.weight": np.ones((1, width), np.float32),
        "base_model.model.q_proj.lora_B.weight": np.ones((1, 1), np.float32),
    }
    content["base_model.model.q_proj.lora_A.weight"][0, 5] = np.nan
    build.save(folder, {"r": 1}, content)
    with pytest.raises(CheckpointInvalid, match="NaN"):
        inspect(folder, base)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_accepted_up_to_its_largest_number(folder, dtype):
    build.save(folder)
    kind = getattr(torch, dtype)
    content = {
        n: torch.full(a.shape, torch.finfo(kind).max, dtype=kind)
        for n, a in build.tensors().items()
    }
    safetensors.torch.save_file(content, folder / "adapter_model.safetensors")
    assert inspect(folder, build.base()).modules == (Q0, Q1)


def entry(start, end, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("header", "data", "reason"),
    [
        (b"{", b"", "corrupt"),
        (b"[]", b"", "corrupt"),
        (b'{"a": 1}', b"", "corrupt"),
        (b'{"a": 1, "a": 2}', b"", "twice"),
        (b"[" * 100_000, b"", "deep"),
        ({"a": {**entry(0, 8), "more": 1}}, b"\0" * 8, "more"),
        ({"a": entry(0, 8), "b": entry(4, 12)}, b"\0" * 12, "overlaps"),
        ({"a": entry(0, 8), "b": entry(12, 20)}, b"\0" * 20, "hole"),
        ({"a": entry(0, 8)}, b"\0" * 7, "truncated"),
        ({"a": entry(0, 8)}, b"\0" * 9, "padded"),
        ({"a": entry(0, 9)}, b"\0" * 9, "needs 8 bytes"),
        ({"a": entry(-8, 0)}, b"", "impossible"),
        ({"a": entry(0, 8, (-1, -2))}, b"\0" * 8, "impossible"),
        ({"a": entry(0, 0, (1 << 64, 0))}, b"", "impossible"),
        ({"a": entry(0, 8, (1,) * 9)}, b"\0" * 8, "9 dimensions"),
        ({"a\ud800": entry(0, 8)}, b"\0" * 8, "not Unicode"),
        ({"a": entry(0, 8, (2**62, 2**62))}, b"\0" * 8, "needs"),
        ({"a" * 513: entry(0, 8)}, b"\0" * 8, "a name of 513 characters"),
        ({str(i): entry(0, 0, (0,)) for i in range(65_537)}, b"", "65537 tensors"),
        ({"a": entry(0, 8, dtype="F99")}, b"\0" * 8, "F99"),
        ({"__metadata__": {"a": 1}}, b"", "corrupt"),
        ({}, b"", "no tensors"),
    ],
)
def test_a_header_that_contradicts_itself_or_the_file_is_refused(folder, header, data, reason):
    write_file(folder, header, data)
    assert any(reason in text for text in problems(folder)), problems(folder)


@pytest.mark.parametrize("content", [b"", b"\1\0", struct.pack("<Q", 100) + b"{}"])
def test_a_file_too_short_for_its_header_is_refused(folder, content):
    build.save(folder)
    (folder / "adapter_model.safetensors").write_bytes(content)
    assert "truncated" in problem(folder)


def test_a_header_beyond_the_limit_is_not_read(folder):
    build.save(folder)
    with (folder / "adapter_model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", MAX_HEADER_BYTES + 1))
        file.truncate(MAX_HEADER_BYTES + 100)
    assert "at most" in problem(folder)


def test_a_file_beyond_the_size_limit_is_not_read(folder):
    build.save(folder)
    with (folder / "adapter_model.safetensors").open("wb") as file:
        file.truncate(4 * 1024**3 + 1)  # sparse
    assert "at most" in problem(folder)


@pytest.mark.parametrize("removed", [1, 3, 40])
def test_a_file_that_shrinks_after_its_header_was_read_is_refused(folder, monkeypatch, removed):
    build.save(folder)
    path = folder / "adapter_model.safetensors"
    read = checkpoint_module.read_entries

    def shrink(asked):
        entries = read(asked)
        path.write_bytes(path.read_bytes()[:-removed])
        return entries

    monkeypatch.setattr(checkpoint_module, "read_entries", shrink)
    assert "cannot be read" in problem(folder)


def test_copies_of_a_file_that_is_gone_after_its_header_was_read_are_no_crash(folder, monkeypatch):
    twins = {f"base_model.model.{name}.weight": np.zeros((9, 4), np.float32) for name in TIED_PAIR}
    build.save(folder, content={**build.tensors(), **twins})
    assert inspect(folder, build.base())
    read = checkpoint_module.read_entries

    def remove(asked):
        entries = read(asked)
        asked.unlink()
        return entries

    monkeypatch.setattr(checkpoint_module, "read_entries", remove)
    assert all("cannot be read" in text for text in problems(folder))


def test_a_negative_alpha_is_as_good_as_any(folder):
    assert inspect(build.save(folder, {"lora_alpha": -6}), build.base()).config.alpha == -6


def test_metadata_of_the_file_is_accepted_and_not_part_of_the_digest(folder, tmp_path):
    plain = inspect(build.save(tmp_path / "plain"), build.base())
    build.save(folder)
    path = folder / "adapter_model.safetensors"
    safetensors.numpy.save_file(build.tensors(), path, metadata={"format": "pt"})
    assert inspect(folder, build.base()).digest == plain.digest
