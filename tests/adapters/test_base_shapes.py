import json

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from tests.engine.architectures import ARCHITECTURES
from tests.tiny_models import llama_config, qwen3_config, save_model
from transformers import AutoModelForCausalLM

from loraplex.adapters.base_shapes import BaseShapes
from loraplex.adapters.errors import BaseUnreadable
from loraplex.adapters.tensor_file import TensorEntry


def entry(name, *shape, dtype="F32"):
    return TensorEntry(name, dtype, shape, 0, 0)


def test_linear_layers_are_those_of_the_model(tmp_path):
    folder = save_model(tmp_path / "model", llama_config())
    model = AutoModelForCausalLM.from_pretrained(folder)
    linears = {
        name: (module.out_features, module.in_features)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    shapes = BaseShapes.read(folder)
    assert shapes.linears == linears
    assert set(shapes.embeddings) == {"model.embed_tokens"}
    assert shapes.heads == {"lm_head"}


def test_a_head_tied_to_the_embedding_is_a_linear_layer_of_its_shape(tmp_path):
    shapes = BaseShapes.read(save_model(tmp_path / "model", qwen3_config()))
    assert shapes.linears["lm_head"] == (320, 64)
    assert shapes.heads == {"lm_head"}


def test_without_tying_there_is_no_head_that_is_not_in_the_files():
    shapes = BaseShapes.of([entry("model.embed_tokens.weight", 7, 4)], tied=False)
    assert shapes.linears == {}


def test_norms_biases_and_quantised_weights_are_no_linear_layers():
    entries = [entry("n.weight", 4), entry("q.bias", 4), entry("q.weight", 4, 4, dtype="I32")]
    assert BaseShapes.of(entries, tied=False).linears == {}


def test_shards_are_read_through_their_index(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    save_file({"a.weight": np.zeros((2, 3), np.float32)}, tmp_path / "x.safetensors")
    save_file({"b.weight": np.zeros((4, 5), np.float32)}, tmp_path / "y.safetensors")
    index = {"weight_map": {"a.weight": "x.safetensors", "b.weight": "y.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert BaseShapes.read(tmp_path).linears == {"a": (2, 3), "b": (4, 5)}


def test_an_index_that_points_out_of_the_folder_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    index = {"weight_map": {"a": "../x.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BaseUnreadable, match="outside"):
        BaseShapes.read(tmp_path)


@pytest.mark.parametrize("broken", ["folder", "config.json", "model.safetensors"])
def test_an_incomplete_or_corrupt_folder_is_named(tmp_path, broken):
    if broken != "folder":
        (tmp_path / "config.json").write_text("{}")
        save_file({"a": np.zeros(2, np.float32)}, tmp_path / "model.safetensors")
        (tmp_path / broken).write_bytes(b"{broken")
    with pytest.raises(BaseUnreadable, match=str(tmp_path)):
        BaseShapes.read(tmp_path)


@pytest.mark.parametrize("name", ["GPT-2", "Mixtral", "Qwen3-MoE"])
def test_layers_that_files_do_not_tell_are_not_guessed(tmp_path, name):
    config = ARCHITECTURES[name].config
    folder = save_model(tmp_path / "model", config)
    told = rf"{config.model_type} model do not tell.*serve it once"
    with pytest.raises(BaseUnreadable, match=told):
        BaseShapes.read(folder)
