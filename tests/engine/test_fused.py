"""Compiled ops take over forward passes of every architecture, and its logits stay the same."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import tiny_models
from tests.engine.architectures import ARCHITECTURES
from tests.engine.fused_model import ALL, FUSED, fused_counts, step_logits
from torch import nn
from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaRMSNorm

from loraplex.engine import fused
from loraplex.engine.config import ModelConfig
from loraplex.engine.errors import ModelUnsupported
from loraplex.engine.fused import fuse, own_code
from loraplex.engine.fused_model import Ends
from loraplex.engine.fused_parts import find_norm
from loraplex.engine.gate import AttentionProbe
from loraplex.engine.model import load_model
from loraplex.kernels.cpu_kernels import CpuKernels
from loraplex.platform.bench.bare import with_own_modules

ENDS = Ends("model.embed_tokens", "lm_head")
EXACT = 1e-5
"""Largest difference of logits in float32, over the largest logit."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_are_the_same_with_compiled_ops(
    name: str, dtype: str, tmp_path: Path, compiled_kernels: CpuKernels
) -> None:
    folder = tiny_models.save_model(tmp_path / "model", ARCHITECTURES[name].config)
    config = ModelConfig(folder, "tiny", "cpu", dtype)
    own, ours = load_model(config), load_model(config, compiled_kernels)
    assert fused_counts(ours.network) == FUSED.get(name, ALL)
    assert fused_counts(own.network) == (0, 0, 0, 0)
    expected = step_logits(own)
    difference = (step_logits(ours) - expected).abs().max()
    tolerance = EXACT if dtype == "float32" else ARCHITECTURES[name].tolerances[dtype]
    assert difference <= tolerance * expected.abs().max()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_models.save_model(tmp_path / "model", tiny_models.llama_config())


def test_it_is_told_what_was_replaced(
    folder: Path, compiled_kernels: CpuKernels, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "loraplex.engine.fused"):
        load_model(ModelConfig(folder, "tiny", "cpu", "float32"), compiled_kernels)
    assert "of 3 layers, compiled ops compute 3 layers, 3 attention modules" in caplog.text


def test_a_model_whose_logits_would_change_keeps_its_own_code(
    folder: Path,
    compiled_kernels: CpuKernels,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(fused, "find_mlp", lambda *_: torch.zeros_like)
    model = load_model(ModelConfig(folder, "tiny", "cpu", "float32"), compiled_kernels)
    assert fused_counts(model.network) == (0, 0, 0, 0)
    assert "the model's own code computes all of it" in caplog.text


def test_a_float16_model_with_wider_logits_keeps_its_own_code(
    folder: Path, compiled_kernels: CpuKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = LlamaForCausalLM.forward

    def widened(self: Any, *inputs: Any, **options: Any) -> Any:
        output = compute(self, *inputs, **options)
        output.logits = output.logits.float()
        return output

    monkeypatch.setattr(LlamaForCausalLM, "forward", widened)
    model = load_model(ModelConfig(folder, "tiny", "cpu", "float16"), compiled_kernels)
    assert fused_counts(model.network) == (0, 0, 0, 0)


def test_a_norm_of_a_dtype_that_ops_lack_is_none_of_theirs(compiled_kernels: CpuKernels) -> None:
    assert find_norm(LlamaRMSNorm(8).half(), compiled_kernels.elementwise) is None


@pytest.mark.parametrize("option", ["s_aux", "position_bias"])
def test_options_of_attention_that_are_not_served_are_refused(
    option: str, folder: Path, compiled_kernels: CpuKernels
) -> None:
    model = load_model(ModelConfig(folder, "tiny", "cpu", "float32"), compiled_kernels)
    attention = model.network.get_submodule("model.layers.0.self_attn")
    tables = (torch.ones(1, 2, 16), torch.zeros(1, 2, 16))
    call = {"position_embeddings": tables, "step": AttentionProbe(), option: torch.ones(1)}
    with pytest.raises(ModelUnsupported, match=option):
        attention(hidden_states=torch.ones(1, 2, 64), **call)
    with pytest.raises(TypeError, match=option):
        model.network(
            input_ids=torch.ones(1, 2, dtype=torch.int64),
            position_ids=torch.arange(2)[None],
            logits_to_keep=torch.arange(2),
            step=AttentionProbe(),
            **{option: torch.ones(1)},
        )


def test_modules_compute_by_their_own_code_where_that_is_asked_for(
    folder: Path, compiled_kernels: CpuKernels
) -> None:
    model = load_model(ModelConfig(folder, "tiny", "cpu", "float32"), compiled_kernels)
    expected = step_logits(model)
    with own_code(model.network):
        assert fused_counts(model.network) == (0, 0, 0, 0)
        assert (step_logits(model) - expected).abs().max() <= EXACT * expected.abs().max()
    assert fused_counts(model.network) == ALL


def test_a_copy_of_a_model_calls_the_layers_of_the_copy(
    folder: Path, compiled_kernels: CpuKernels
) -> None:
    model = load_model(ModelConfig(folder, "tiny", "cpu", "float32"), compiled_kernels)
    copy = with_own_modules(model)
    called: list[str] = []
    for name, each in (("model", model), ("copy", copy)):
        layer = each.network.get_submodule("model.layers.1.mlp.down_proj")
        layer.register_forward_hook(lambda *_, name=name: called.append(name))
    assert torch.equal(step_logits(copy), step_logits(model))
    assert called == ["copy", "model"]


def test_a_norm_that_does_more_when_it_is_called_is_called(
    folder: Path, compiled_kernels: CpuKernels
) -> None:
    model = load_model(ModelConfig(folder, "tiny", "cpu", "float32"))
    layer = model.network.get_submodule("model.layers.1")
    norm = layer.get_submodule("input_layernorm")
    norm.register_forward_hook(lambda _, __, y: y + 1)
    expected = step_logits(model)
    fuse(model.network, ENDS, compiled_kernels.elementwise)
    assert fused_counts(model.network) == (2, 3, 3, 0)
    torch.testing.assert_close(step_logits(model), expected)


def test_a_layer_that_runs_twice_is_left_alone(compiled_kernels: CpuKernels, folder: Path) -> None:
    model = load_model(ModelConfig(folder, "tiny", "cpu", "float32"))
    layers = model.network.get_submodule("model.layers")
    assert isinstance(layers, nn.ModuleList)
    layers[2] = layers[1]
    layers[1].self_attn.layer_idx = 1
    fuse(model.network, ENDS, compiled_kernels.elementwise)
    assert fused_counts(model.network) == (1, 1, 2, 0)
