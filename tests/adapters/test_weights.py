import math
import warnings
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from tests import tiny_models
from tests.adapters import build
from tests.adapters.build import Q0, Q1
from transformers import AutoModelForCausalLM

from loraplex.adapters import patterns
from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.checkpoint import inspect
from loraplex.adapters.digest import with_profile
from loraplex.adapters.errors import (
    AdapterCorrupt,
    AdapterMismatch,
    AdapterMissing,
    PatternTimeout,
)
from loraplex.adapters.outline import Outlines
from loraplex.adapters.placement import load, place
from loraplex.adapters.profile import AddedToken, Profile
from loraplex.adapters.sizes import sizes_of_head
from loraplex.adapters.storage import AdapterStore
from loraplex.adapters.weights import read


@pytest.fixture
def store(tmp_path):
    return AdapterStore(tmp_path / "store")


@pytest.fixture
def stored(tmp_path, store):
    """Store an adapter with these config fields; return its digest."""

    def put(config=None, content=None):
        folder = build.save(tmp_path / "adapter", config, content)
        checkpoint = inspect(folder, build.base())
        store.put(checkpoint)
        return checkpoint.digest

    return put


class Weights:
    """A base model's, by path of module."""

    def __init__(self, weights=None, biases=None, transposed=()):
        self._weights = weights or {}
        self._biases = biases or {}
        self._transposed = transposed

    def weight(self, path):
        return self._weights[path]

    def bias(self, path):
        return self._biases.get(path)

    def is_transposed(self, path):
        return path in self._transposed


def load_plain(store, digest, dtype=torch.float32, base=None, weights=None):
    base = base or build.base()
    return load(store, digest, base, weights or Weights(), dtype=dtype, device="cpu")


def test_pairs_are_the_tensors_of_the_file(store, stored):
    weights = load_plain(store, stored())
    assert set(weights.pairs) == {Q0, Q1}
    for module, pair in weights.pairs.items():
        prefix = f"base_model.model.{module}"
        assert torch.equal(pair.a, torch.from_numpy(build.tensors()[f"{prefix}.lora_A.weight"]))
        assert torch.equal(pair.b, torch.from_numpy(build.tensors()[f"{prefix}.lora_B.weight"]))
        assert pair.a.is_contiguous()
        assert pair.b.is_contiguous()


def test_each_module_keeps_its_true_rank_and_its_own_scale(store, stored):
    config = {"rank_pattern": {"layers.1.self_attn.q_proj": 5}, "use_rslora": True}
    content = {**build.pair(Q0), **build.pair(Q1, rank=5)}
    pairs = load_plain(store, stored(config, content)).pairs
    assert pairs[Q0].a.shape == (2, build.IN)
    assert pairs[Q1].b.shape == (build.OUT, 5)
    assert pairs[Q0].scale == 6 / math.sqrt(2)
    assert pairs[Q1].scale == 6 / math.sqrt(5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_takes_as_many_bytes_as_the_store_announced(store, stored, dtype):
    digest = stored()
    weights = load_plain(store, digest, dtype)
    assert weights.pairs[Q0].a.dtype == dtype
    assert (
        weights.num_bytes
        == sizes_of_head(
            store.head(digest), build.base(), bytes_per_element=dtype.itemsize
        ).device_bytes
    )
    assert weights.num_bytes == 28 * dtype.itemsize


def test_an_adapter_that_is_not_stored_is_missing(store):
    with pytest.raises(AdapterMissing):
        load_plain(store, "0" * 64)


def test_a_changed_weight_is_noticed(store, stored):
    digest = stored()
    path = store.open(digest) / "adapter_model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(AdapterCorrupt, match=digest):
        load_plain(store, digest)


def test_a_changed_config_is_noticed(store, stored):
    digest = stored()
    path = store.open(digest) / "adapter_config.json"
    path.write_text(path.read_text().replace('"lora_alpha": 6', '"lora_alpha": 7'))
    with pytest.raises(AdapterCorrupt, match=digest):
        load_plain(store, digest)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize("damage", ["truncate", "unlink"])
def test_a_damaged_file_is_noticed(store, stored, name, damage):
    digest = stored()
    path = store.open(digest) / name
    if damage == "unlink":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(AdapterCorrupt, match=digest):
        load_plain(store, digest)


WIDER = BaseShapes(MappingProxyType({Q0: (3, 5), Q1: (3, 5)}), MappingProxyType({}), frozenset())
DEEPER = replace(build.base(), linears={**build.base().linears, Q1.replace("1", "2"): (3, 4)})
OTHER = BaseShapes(MappingProxyType({}), MappingProxyType({}), frozenset())


@pytest.mark.parametrize(
    ("base", "reason"),
    [
        (WIDER, r"is \(2, 4\): the base model and rank 2 need the shape \(2, 5\)"),
        (DEEPER, r"layers\.2\.self_attn\.q_proj: targeted by the config but not in the file"),
        (OTHER, "not a linear layer of the base model"),
    ],
    ids=["wider", "deeper", "other"],
)
def test_an_adapter_of_another_base_model_is_a_mismatch_that_says_where(
    store, stored, base, reason
):
    digest = stored()
    with pytest.raises(AdapterMismatch, match=reason):
        load_plain(store, digest, base=base)


@pytest.fixture(scope="module", params=[False, True], ids=["head apart", "tied head"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return tiny_models.save_model(
        folder, tiny_models.llama_config(tie_word_embeddings=request.param)
    )


def peft_layers(model, adapter):
    """Module path to PEFT's own LoRA layer."""
    base = AutoModelForCausalLM.from_pretrained(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*tie_word_embeddings")
        adapted = PeftModel.from_pretrained(base, adapter)
    modules = adapted.base_model.model.named_modules()
    return {name: module for name, module in modules if isinstance(module, LoraLayer)}


@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": "all-linear"},
        {"target_modules": ["q_proj", "lm_head"], "use_rslora": True},
        {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [0, 2]},
        {"target_modules": ["up_proj"], "layers_to_transform": 1, "layers_pattern": "layers"},
        {
            "target_modules": ["q_proj"],
            "layers_to_transform": [0, 2],
            "layers_pattern": ["h", "l.*s"],
        },
        {"target_modules": r".*\.layers\.[12]\.(self_attn|mlp)\.(q|up)_proj"},
        {
            "target_modules": r"(?i)(?!.*MLP).*_PROJ",
            "exclude_modules": r".*\.(.)\w*_proj(?<!\1_proj)",
        },
        {"target_modules": "all-linear", "rank_pattern": {r"(?!up|q)\w+_proj": 5, r"\S+": 2}},
        {"target_modules": ["self_attn.k_proj"], "exclude_modules": r".*\.0\..*"},
        {"target_modules": ["q_proj", "o_proj"], "exclude_modules": ["layers.1.self_attn.q_proj"]},
        {
            "target_modules": ["q_proj", "k_proj", "up_proj"],
            "rank_pattern": {r"layers\.\d\.self_attn.q_proj": 5, "q_proj": 7, ".*up_proj": 9},
            "alpha_pattern": {"model.layers.0.mlp.up_proj": 11, "(q|up)_proj": 13},
            "use_rslora": True,
        },
    ],
    ids=" ".join,
)
@pytest.mark.filterwarnings("ignore:The following rank_pattern keys:RuntimeWarning")
def test_modules_ranks_scales_and_weights_are_those_of_peft(tmp_path, store, model, config):
    folder = tiny_models.save_adapter(tmp_path / "adapter", model, r=3, lora_alpha=4, **config)
    base = BaseShapes.read(model)
    checkpoint = inspect(folder, base)
    store.put(checkpoint)
    pairs = load_plain(store, checkpoint.digest, base=base).pairs
    expected = peft_layers(model, folder)
    assert set(pairs) == set(expected) == set(checkpoint.modules)
    for module, layer in expected.items():
        assert pairs[module].a.shape[0] == layer.r["default"]
        assert pairs[module].scale == pytest.approx(layer.scaling["default"], rel=1e-15)
        assert torch.equal(pairs[module].a, layer.lora_A["default"].weight)
        assert torch.equal(pairs[module].b, layer.lora_B["default"].weight)


HEAD = "lm_head"
TABLE = np.random.default_rng(9).standard_normal((7, build.IN)).astype(np.float32)
ON_HEAD = {"target_modules": ["q_proj", "lm_head"]}


def with_head(**copies):
    """Pairs of all targets and of the tied head, and copies of the base's weight."""
    head = build.pair(HEAD)
    head[f"base_model.model.{HEAD}.lora_B.weight"] = np.ones((7, 2), np.float32)
    named = {f"base_model.model.{HEAD}.{name}.weight": copy for name, copy in copies.items()}
    return {**build.tensors(), **head, **named}


@pytest.mark.parametrize("served", [torch.float32, torch.bfloat16])
def test_a_copy_of_the_bases_weight_is_dropped_if_it_is_the_same(store, stored, served):
    digest = stored(ON_HEAD, with_head(base_layer=TABLE))
    base = Weights({HEAD: torch.from_numpy(TABLE).to(served)})
    weights = load_plain(store, digest, served, weights=base)
    assert not weights.effects
    assert weights.num_bytes == (28 + 2 * build.IN + 7 * 2) * served.itemsize


def test_a_copy_that_was_rounded_from_the_bases_weight_is_the_same(store, stored):
    digest = stored(ON_HEAD, with_head(base_layer=TABLE.astype(np.float16)))
    base = Weights({HEAD: torch.from_numpy(TABLE)})
    assert not load_plain(store, digest, weights=base).effects


def test_a_copy_of_another_bases_weight_is_a_mismatch_that_names_the_tensor(store, stored):
    other = TABLE.copy()
    other[3] += 1
    digest = stored(ON_HEAD, with_head(base_layer=other))
    reason = r"lm_head\.base_layer\.weight.* in 1 of 7 rows"
    with pytest.raises(AdapterMismatch, match=reason):
        load_plain(store, digest, weights=Weights({HEAD: torch.from_numpy(TABLE)}))


def test_a_saved_weight_that_lies_the_other_way_round_is_a_mismatch(store, stored):
    content = build.pair(Q0) | {
        f"base_model.model.{Q1}.weight": np.ones((build.IN, build.OUT), np.float32)
    }
    config = {"target_modules": ["layers.0.self_attn.q_proj"], "modules_to_save": [Q1]}
    digest = stored(config, content)
    with pytest.raises(AdapterMismatch, match="the other way round"):
        load_plain(store, digest)
    weights = load_plain(store, digest, weights=Weights(transposed={Q1}))
    assert weights.effects[Q1].weight.shape == (build.OUT, build.IN)


class OnceStore:
    """A store that lets each version be opened once."""

    def __init__(self, store):
        self._store = store
        self._opened = set()

    def open(self, digest):
        assert digest not in self._opened
        self._opened.add(digest)
        return self._store.open(digest)


def test_the_profile_that_is_used_is_the_one_that_was_verified(tmp_path, store):
    tool = AddedToken(7, "<tool>", is_special=False)
    kept = Profile(added_tokens=(tool,)).kept()
    checkpoint = inspect(build.save(tmp_path / "adapter"), build.base())
    digest = with_profile(checkpoint.digest, kept)
    store.put(replace(checkpoint, digest=digest), kept)
    found = read(OnceStore(store), digest, build.base(), Weights())
    assert found.profile.added_tokens == (tool,)
    assert place(found, dtype=torch.float32, device="cpu").added_tokens == {7: tool}


HARD = r"(?i)(?:.*?.*?)zz|.*q_proj"
"""Beyond the automaton: a process of its own matches it."""


def test_sizes_need_no_pattern_and_loads_match_each_adapter_s_once(
    store, stored, monkeypatch: pytest.MonkeyPatch
):
    digest = stored({"target_modules": HARD})
    solve, solved = patterns.solve, []

    def counted(queries, paths):
        solved.extend(queries)
        return solve(queries, paths)

    monkeypatch.setattr(patterns, "solve", counted)
    head = store.head(digest)
    sizes = sizes_of_head(head, build.base(), bytes_per_element=4)
    assert solved == []
    outlines = Outlines()
    for _ in range(2):
        found = read(store, digest, build.base(), Weights(), outlines=outlines)
        assert found.layout.num_bytes(4) == sizes.device_bytes
    assert [query.pattern for query in solved] == [HARD]


def test_a_pattern_that_takes_too_long_is_not_tried_again_with_each_load(
    store, stored, monkeypatch: pytest.MonkeyPatch
):
    digest = stored({"target_modules": HARD})
    tries = []

    def too_long(queries, paths):
        tries.append(queries)
        raise PatternTimeout(HARD)

    monkeypatch.setattr(patterns, "solve", too_long)
    outlines = Outlines()
    for _ in range(2):
        with pytest.raises(PatternTimeout):
            read(store, digest, build.base(), Weights(), outlines=outlines)
    assert len(tries) == 1
