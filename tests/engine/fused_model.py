"""What of a model compiled ops compute, and a step of it."""

from collections.abc import Mapping
from types import MappingProxyType

from tests.engine.packed_greedy import GREEDY, plan_of
from torch import Tensor, nn

from loraplex.engine.fused_attention import FusedAttention
from loraplex.engine.fused_layer import FusedLayer
from loraplex.engine.fused_model import FusedModel
from loraplex.engine.fused_parts import FusedJointMlp, FusedMlp
from loraplex.engine.model import LoadedModel
from loraplex.engine.plan import Chunk
from loraplex.engine.runner import ModelRunner

Counts = tuple[int, int, int, int]
"""Of layers, attention modules, gated layers and whole models whose forward passes are ours."""

ALL: Counts = (3, 3, 3, 1)
FUSED: Mapping[str, Counts] = MappingProxyType(
    {
        "Gemma 2": (3, 3, 3, 0),
        "GPT-2": (0, 0, 0, 0),
        "Granite": (3, 3, 3, 0),
        "Qwen3-MoE": (3, 3, 0, 1),
        "Mixtral": (3, 3, 0, 1),
    }
)
"""Of the proven architectures, each of three layers; of all others everything is."""


def fused_counts(network: nn.Module) -> Counts:
    forwards = [vars(module).get("forward") for module in network.modules()]
    kinds = (FusedLayer, FusedAttention, FusedMlp | FusedJointMlp, FusedModel)
    layers, attentions, mlps, models = (
        sum(isinstance(each, kind) for each in forwards) for kind in kinds
    )
    return layers, attentions, mlps, models


def step_logits(model: LoadedModel) -> Tensor:
    """Of a step of two prompts, one of them longer than windows are."""
    runner = ModelRunner(model, 16, 4)
    prompts = (tuple(range(5, 24)), (9, 8, 7))
    blocks = (tuple(range(6)), (7,))
    chunks = [
        Chunk(f"{len(prompt)}", None, prompt, 0, table, GREEDY)
        for prompt, table in zip(prompts, blocks, strict=True)
    ]
    return runner.logits(runner.build(plan_of(chunks), {}))
