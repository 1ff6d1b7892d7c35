"""Which modules are meant, by PEFT's own functions on the same config and the same names."""

import json
import warnings

import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils.other import ModulesToSaveWrapper

from loraplex.adapters import targets
from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.config_reader import parse

NAMES = ("q_proj", "v_proj", "up_proj")
LAYERS = 3
PATHS = [
    *(f"model.layers.{i}.{part}" for i in range(LAYERS) for part in NAMES),
    *("model.blocks.1.q_proj", "model.embed_tokens", "lm_head"),
]


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name in NAMES:
            self.add_module(name, torch.nn.Linear(2, 2))


class Network(torch.nn.Module):
    """Modules of PATHS, and nothing that PEFT could take for a transformer."""

    def __init__(self):
        super().__init__()
        self.model = torch.nn.Module()
        self.model.layers = torch.nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.model.blocks = torch.nn.ModuleDict({"1": torch.nn.Module()})
        self.model.blocks["1"].q_proj = torch.nn.Linear(2, 2)
        self.model.embed_tokens = torch.nn.Embedding(4, 2)
        self.lm_head = torch.nn.Linear(2, 4)


BASE = BaseShapes(
    linears=dict.fromkeys([p for p in PATHS if p != "model.embed_tokens"], (2, 2)),
    embeddings={"model.embed_tokens": (4, 2)},
    heads=frozenset({"lm_head"}),
    token_embedding="model.embed_tokens",
)
ENDS = [".".join(path.split(".")[start:]) for path in PATHS for start in range(path.count(".") + 1)]
NAME = st.sampled_from(sorted({*ENDS, "layers", "1", "proj", "k_proj", "embed", "model"}))
REGEX = st.sampled_from(
    [
        r".*\\.q_proj",
        r"model\\.layers\\.[12]\\.(q|up)_proj",
        r"(?!.*blocks).*_proj",
        r"(?i).*\\.V_PROJ",
        r".*(?<!q)_proj",
        r".*\\.(\\w)\\w*_proj|lm_head",
        r"model.*",
        r"nothing",
    ]
)
RULE = NAME | st.sampled_from(
    [
        r"layers\\.\\d\\.q_proj",
        r"[qv]_proj",
        r"(?!up)\\w+_proj",
        r"^model\\..*",
        r"proj|lm_head",
        r".*",
    ]
)
LAYERS_PATTERN = st.sampled_from(
    ["layers", "blocks", "l.*s", "(?:layers|blocks)", "layers|blocks", "x"]
)
MODULES = st.lists(NAME, min_size=1, max_size=4) | REGEX


@st.composite
def configs(draw):
    fields = {"target_modules": draw(MODULES), "exclude_modules": draw(st.none() | MODULES)}
    if isinstance(fields["target_modules"], list) and draw(st.booleans()):
        fields["layers_to_transform"] = draw(st.integers(0, 3) | st.lists(st.integers(0, 3)))
        fields["layers_pattern"] = draw(st.none() | LAYERS_PATTERN | st.lists(LAYERS_PATTERN))
    fields["modules_to_save"] = draw(st.none() | st.lists(NAME, max_size=2))
    fields["rank_pattern"] = draw(st.dictionaries(RULE, st.integers(1, 9), max_size=3))
    fields["alpha_pattern"] = draw(st.dictionaries(RULE, st.integers(1, 9), max_size=3))
    return {"r": 4, "lora_alpha": 6, "use_rslora": draw(st.booleans()), **fields}


def by_peft(fields):
    """Rank and scale of each module that PEFT adapts, and the modules that it replaces."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = get_peft_model(Network(), LoraConfig(**fields)).base_model.model
    pairs, saved = {}, set()
    for path, module in network.named_modules():
        if isinstance(module, LoraLayer):
            pairs[path] = (module.r["default"], module.scaling["default"])
        elif isinstance(module, ModulesToSaveWrapper):
            saved.add(path)
    return pairs, saved


@settings(max_examples=150)
@given(configs())
def test_modules_ranks_and_scales_are_those_of_peft(fields):
    parsed = parse(json.dumps({"peft_type": "LORA", **fields}).encode())
    try:
        pairs, saved = by_peft(dict(fields))
    except (ValueError, TypeError):  # nothing is a target, or what cannot be one
        reject()
    assert parsed.problems == ()
    config = parsed.config
    matcher = targets.matcher_for(config, BASE)
    found = targets.targeted(config, BASE, matcher)
    replaced = {path for path in PATHS if targets.saved(config, BASE)(path)}
    ranks = targets.ranks(config, found, matcher)
    scales = targets.scales(config, ranks, matcher)
    assert {path: (ranks[path], scales[path]) for path in found} == pairs
    assert replaced == saved & set(PATHS)
