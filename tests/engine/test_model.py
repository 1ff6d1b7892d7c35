"""Which base models are accepted, which are refused and why, and what is known of one."""

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import tiny_models
from tests.engine.architectures import ARCHITECTURES, ATTENTION
from transformers import (
    MistralConfig,
    Phi3Config,
    PreTrainedConfig,
)
from transformers.utils import logging as transformers_logging

from loraplex.engine import model as model_module
from loraplex.engine.config import ModelConfig
from loraplex.engine.errors import MemoryTooSmall, ModelUnsupported
from loraplex.engine.gate import LayerShape
from loraplex.engine.model import LoadedModel, export_tokenizer, load_model

_SHAPE = {
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "factor": 4.0,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 64,
}


def load(folder: Path, **changes: int) -> LoadedModel:
    return load_model(ModelConfig(folder, "tiny", "cpu", "float32", **changes))


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "llama"
    return tiny_models.save_model(folder, tiny_models.llama_config())


@pytest.fixture
def copied(llama: Path, tmp_path: Path) -> Path:
    """A folder of the same files, to be spoilt."""
    for file in llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_a_loaded_model_tells_its_shape(llama: Path) -> None:
    model = load(llama)
    layer = LayerShape(kv_heads=2, key_dim=16, value_dim=16, window=None, group=2)
    assert model.layers == (layer,) * 3
    assert (model.vocab_size, model.max_model_len) == (320, 256)
    assert (model.dtype, model.head_path) == (torch.float32, "lm_head")
    assert len(model.shapes.linears) == 3 * 7 + 1
    assert "model.layers.2.mlp.down_proj" in model.shapes.linears
    assert not any(parameter.requires_grad for parameter in model.network.parameters())


def test_a_model_that_does_not_fit_into_memory_is_refused_before_it_is_loaded(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_module, "free_host_bytes", lambda: 1000)
    monkeypatch.setattr(model_module, "_load_network", None)
    with pytest.raises(MemoryTooSmall, match="LORAPLEX_DTYPE=bfloat16"):
        load(llama)


@pytest.mark.parametrize("eos", [1, [1, 5]])
def test_every_end_token_is_known(llama: Path, copied: Path, eos: int | list[int]) -> None:
    generation = json.loads((llama / "generation_config.json").read_text())
    (copied / "generation_config.json").write_text(json.dumps({**generation, "eos_token_id": eos}))
    assert load(copied).eos_token_ids == frozenset([1, 5][: 1 if eos == 1 else 2])


def test_windows_are_known_by_layer(tmp_path: Path) -> None:
    config = MistralConfig(**_SHAPE, num_key_value_heads=2, intermediate_size=80, sliding_window=8)
    model = load(tiny_models.save_model(tmp_path, config))
    assert [layer.window for layer in model.layers] == [8, 8]


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        (tiny_models.llama_config(), 256),
        (
            Phi3Config(
                **_SHAPE,
                num_key_value_heads=2,
                intermediate_size=80,
                max_position_embeddings=256,
                original_max_position_embeddings=64,
                rope_parameters=_LONGROPE,
            ),
            64,
        ),
    ],
    ids=["all positions", "longrope serves its original length"],
)
def test_the_model_limits_the_length(
    tmp_path: Path, config: PreTrainedConfig, longest: int
) -> None:
    folder = tiny_models.save_model(tmp_path, config)
    assert load(folder).max_model_len == longest
    assert load(folder, max_model_len=20).max_model_len == 20
    with pytest.raises(ModelUnsupported, match=f"serves at most {longest} tokens"):
        load(folder, max_model_len=longest + 1)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/nowhere/at/all", "there is no folder /nowhere/at/all"),
        ("acme/no-such-model", "the hub has no such model or is out of reach"),
        ("/etc/hostname", "is a file"),
        ("/etc", "has no config.json"),
    ],
)
def test_a_path_without_a_model_is_named(name: str, reason: str) -> None:
    with pytest.raises(ModelUnsupported, match=reason):
        load(Path(name))


def test_a_name_of_the_hub_is_loaded_from_its_snapshot(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's cache as it lies on disk after a download; the hub itself is not reached."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--acme--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    shutil.copytree(llama, repository / "snapshots" / ("0" * 40))
    model = load(Path("acme/tiny"))
    assert model.path == repository / "snapshots" / ("0" * 40)
    assert model.max_model_len == 256


def test_what_an_adapter_can_be_attached_to_is_told_by_the_model_not_by_its_files(
    tmp_path: Path,
) -> None:
    shapes = load(tiny_models.save_model(tmp_path, ARCHITECTURES["GPT-2"].config)).shapes
    assert shapes.linears["transformer.h.0.attn.c_attn"] == (192, 64)  # its file has [64, 192]
    assert shapes.linears["transformer.h.2.mlp.c_proj"] == (64, 256)
    assert shapes.linears["lm_head"] == (320, 64)
    assert len(shapes.linears) == 3 * 4 + 1
    assert set(shapes.embeddings) == {"transformer.wte", "transformer.wpe"}
    assert shapes.token_embedding == "transformer.wte"
    assert shapes.biases["transformer.ln_f"] == 64
    assert shapes.heads == {"lm_head"}


@pytest.mark.parametrize("name", ["Qwen3-MoE", "Mixtral"])
def test_experts_and_routers_are_no_targets(name: str, tmp_path: Path) -> None:
    shapes = load(tiny_models.save_model(tmp_path, ARCHITECTURES[name].config)).shapes
    kinds = {path.rpartition(".")[2] for path in shapes.linears}
    assert kinds == {*ATTENTION, "lm_head"}


def test_an_adapter_is_no_base_model(copied: Path) -> None:
    (copied / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelUnsupported, match="it is an adapter"):
        load(copied)


def test_weights_that_are_missing_are_not_made_up(copied: Path) -> None:
    tensors = load_file(copied / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, copied / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelUnsupported, match=r"1 missing weights.*layers\.1\.mlp\.up_proj"):
        load(copied)


def test_weights_that_nothing_reads_are_not_ignored(copied: Path) -> None:
    tensors = load_file(copied / "model.safetensors")
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.ones(64)
    save_file(tensors, copied / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelUnsupported, match=r"1 unexpected weights.*q_proj\.bias"):
        load(copied)


def test_pickled_weights_are_refused(copied: Path) -> None:
    torch.save(load_file(copied / "model.safetensors"), copied / "pytorch_model.bin")
    (copied / "model.safetensors").unlink()
    with pytest.raises(ModelUnsupported, match=r"only pytorch_model\.bin, a pickle that can run"):
        load(copied)


def test_a_truncated_file_is_refused(copied: Path) -> None:
    data = (copied / "model.safetensors").read_bytes()
    (copied / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelUnsupported, match="cannot be served"):
        load(copied)


def test_loading_prints_nothing(llama: Path, capfd: pytest.CaptureFixture[str]) -> None:
    transformers_logging.enable_progress_bar()
    load(llama)
    assert capfd.readouterr() == ("", "")


def test_a_tokenizer_is_handed_out_as_it_is(llama: Path) -> None:
    document, template, special = export_tokenizer(llama)
    assert document == (llama / "tokenizer.json").read_bytes()
    assert template == tiny_models.CHAT_TEMPLATE
    assert special == {"bos_token": "<|start|>", "eos_token": "<|end|>"}


def test_of_several_chat_templates_the_default_is_taken(copied: Path) -> None:
    (copied / "chat_template.jinja").unlink()
    config = json.loads((copied / "tokenizer_config.json").read_text())
    config["chat_template"] = [
        {"name": "tools", "template": "with tools"},
        {"name": "default", "template": "plain"},
    ]
    config["eos_token"] = {"content": "<|end|>", "lstrip": False}  # older files say it so
    (copied / "tokenizer_config.json").write_text(json.dumps(config))
    exported = export_tokenizer(copied)
    assert exported.chat_template == "plain"
    assert exported.special_tokens["eos_token"] == "<|end|>"


def test_a_tokenizer_of_another_format_is_converted(copied: Path) -> None:
    whole = json.loads((copied / "tokenizer.json").read_text())["model"]
    (copied / "tokenizer.json").unlink()
    (copied / "vocab.json").write_text(json.dumps(whole["vocab"]))
    (copied / "merges.txt").write_text("\n".join(" ".join(pair) for pair in whole["merges"]))
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "bos_token": "<|start|>",
        "eos_token": "<|end|>",
        "unk_token": "<|end|>",
    }
    (copied / "tokenizer_config.json").write_text(json.dumps(config))
    exported = export_tokenizer(copied)
    assert json.loads(exported.tokenizer_json)["model"]["vocab"] == whole["vocab"]
    assert exported.special_tokens["eos_token"] == "<|end|>"


def test_a_folder_without_tokenizer_is_refused(copied: Path) -> None:
    for file in copied.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelUnsupported, match="no tokenizer that can be used"):
        export_tokenizer(copied)
