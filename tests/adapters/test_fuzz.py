"""Broken uploads of any kind are refused or served, and never anything else."""

import json
import os
import struct
import tracemalloc
from contextlib import contextmanager

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft import LoraConfig
from tests.adapters import build
from tests.adapters.kinds import APART, TIED, VALID

from loraplex.adapters import placement
from loraplex.adapters.checkpoint import inspect
from loraplex.adapters.claims import Role, claim
from loraplex.adapters.errors import AdapterMismatch, CheckpointInvalid
from loraplex.adapters.storage import AdapterStore
from loraplex.adapters.tensor_file import read_entries

TENSORS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
MAX_PEAK_BYTES = 16 * 1024**2
"""Nothing that a small file says may cost more; reading goes by chunks of 128 KiB."""

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "300"))

FIELDS = sorted(LoraConfig.__dataclass_fields__)
NUMBERS = st.integers() | st.integers(-3, 9) | st.sampled_from([2**31, 2**63, 2**64, 513])
JSON = st.recursive(
    st.none()
    | st.booleans()
    | NUMBERS
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["all", "q_proj", "lm_head", "embed_tokens", "(?!a)q.*", "LORA", "all-linear"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=6) | st.sampled_from(["q_proj", "lm_head"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
NOTHING_LEFT = (ValueError, KeyError, TypeError, IndexError, AttributeError, struct.error)
POSITIONS = st.floats(0, 1, exclude_max=True)


@st.composite
def flipped_bytes(draw):
    """Changes some bytes of a file, most of them in its head."""
    name = draw(st.sampled_from([TENSORS, CONFIG]))
    changes = draw(st.lists(st.tuples(POSITIONS, st.integers(0, 255)), min_size=1, max_size=4))
    reach = draw(st.sampled_from([0.02, 0.3, 1.0]))

    def apply(folder):
        data = bytearray((folder / name).read_bytes())
        for position, value in changes:
            data[int(position * reach * len(data))] = value
        (folder / name).write_bytes(data)

    return apply


@st.composite
def cut_or_grown(draw):
    """Ends a file early, or late."""
    name = draw(st.sampled_from([TENSORS, CONFIG]))
    position, more = draw(POSITIONS), draw(st.binary(max_size=9))

    def apply(folder):
        data = (folder / name).read_bytes()
        kept = data if more else data[: int(position * len(data))]
        (folder / name).write_bytes(kept + more)

    return apply


@st.composite
def edited_headers(draw):
    """Says something else of a tensor, or calls it by another name."""
    which = draw(POSITIONS)
    key = draw(st.sampled_from(["dtype", "shape", "data_offsets", "name", "more"]))
    value = draw(
        JSON
        | st.lists(NUMBERS, max_size=4)
        | st.sampled_from(["F16", "BF16", "F64", "I8", "F8_E4M3"])
    )
    other = draw(st.text(max_size=8) | st.sampled_from(["weight", "lora_A.weight", "x" * 5000]))

    def apply(folder):
        data = (folder / TENSORS).read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + length])
        names = [name for name in header if name != "__metadata__"]
        name = names[int(which * len(names))]
        if key == "name":
            header[f"{name.rpartition('.')[0]}.{other}"] = header.pop(name)
        else:
            header[name][key] = value
        text = json.dumps(header).encode()
        (folder / TENSORS).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

    return apply


@st.composite
def edited_fields(draw):
    """Says something else in the config."""
    fields = draw(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=6), JSON, max_size=3))
    gone = draw(st.lists(st.sampled_from(FIELDS), max_size=2))

    def apply(folder):
        config = {**json.loads((folder / CONFIG).read_text()), **fields}
        kept = {name: value for name, value in config.items() if name not in gone}
        (folder / CONFIG).write_text(json.dumps(kept))

    return apply


MUTATIONS = flipped_bytes() | cut_or_grown() | edited_headers() | edited_fields()


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(VALID),
    base=st.sampled_from([APART, TIED]),
    mutations=st.lists(MUTATIONS, max_size=2),
)
def test_a_broken_upload_is_refused_or_loads_as_it_was_checked(places, kind, base, mutations):
    config, more = kind
    folder = build.save(places / "upload", config, {**build.tensors(), **more})
    for mutate in mutations:
        try:
            mutate(folder)
        except NOTHING_LEFT:
            continue  # to change, by an earlier mutation
    with bounded_memory():
        checkpoint, problems = inspected(folder, base)
    if checkpoint is None:
        assert mutations
        assert is_told(problems)
    else:
        loads_as_checked(checkpoint, base, AdapterStore(places / "store"))


def inspected(folder, base):
    try:
        return inspect(folder, base), ()
    except CheckpointInvalid as error:
        return None, error.problems


@contextmanager
def bounded_memory():
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MAX_PEAK_BYTES
    finally:
        tracemalloc.stop()


def is_told(problems):
    as_json = json.dumps([problem._asdict() for problem in problems])
    return as_json != "[]" and all(problem.field and problem.reason for problem in problems)


class Zeros:
    """Weights of a base model that say nothing."""

    def __init__(self, base):
        self.base = base

    def weight(self, path):
        return torch.zeros({**self.base.linears, **self.base.embeddings}[path])

    def bias(self, path):
        return torch.zeros(self.base.biases[path]) if path in self.base.biases else None

    def is_transposed(self, path):
        return False


def loads_as_checked(checkpoint, base, store):
    store.put(checkpoint)
    entries = read_entries(checkpoint.directory / TENSORS)
    claims, _ = claim(entries, checkpoint.config, base)
    roles = {role for of in claims.values() for role in of}
    where = {"dtype": torch.float32, "device": "cpu"}
    try:
        loaded = placement.load(store, checkpoint.digest, base, Zeros(base), **where)
    except AdapterMismatch:
        assert Role.BASE_WEIGHT in roles  # which the worker alone can compare
        return
    adapted = loaded.pairs.keys() | loaded.effects.keys() | loaded.parameters.keys()
    assert adapted >= set(checkpoint.modules)
