"""`loraplex adapter check`, as a trainer types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from safetensors.numpy import save_file
from tests.adapters import build
from tests.adapters.build import IN, OUT, Q0, Q1
from tests.adapters.kinds import tensor
from typer.testing import CliRunner

from loraplex.adapters.checkpoint import inspect
from loraplex.engine.protocol import LinearShapes
from loraplex.platform.base_record import BaseRecord, write_record
from loraplex.platform.cli.main import app


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Folder of the base model of `build.base()`: what its files tell of it."""
    folder = tmp_path / "model"
    folder.mkdir()
    weights = {f"{Q0}.weight": tensor(OUT, IN), f"{Q1}.weight": tensor(OUT, IN)}
    weights["model.embed_tokens.weight"] = tensor(7, IN)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "llama", "tie_word_embeddings": true}')
    return folder


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return build.save(tmp_path / "adapter")


def check(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["adapter", "check", *map(str, arguments)])


def report(*arguments: object) -> dict[str, object]:
    result = check(*arguments, "--json")
    found: dict[str, object] = json.loads(result.stdout)
    assert result.exit_code == (0 if found["ok"] else 1)
    return found


def test_a_good_adapter_is_reported_for_programs(adapter: Path, model: Path) -> None:
    assert report(adapter, "--model", model) == {
        "ok": True,
        "digest": inspect(adapter, build.base()).digest,
        "rank": 2,
        "targets": [Q0, Q1],
        "problems": [],
        "warnings": [],
    }


def test_each_problem_has_a_field_a_value_and_a_reason(adapter: Path, model: Path) -> None:
    build.save(adapter, {"use_qalora": True, "r": 3})
    found = report(adapter, "--model", model)
    problem = {"field": "use_qalora", "value": "True", "reason": "QALoRA is not served"}
    assert found["problems"] == [problem]
    build.save(adapter, {"r": 3})
    problems = report(adapter, "--model", model)["problems"]
    assert isinstance(problems, list)
    assert problems[0] == {
        "field": f"base_model.model.{Q0}.lora_A.weight",
        "value": "(2, 4)",
        "reason": "the base model and rank 3 need the shape (3, 4)",
    }


def test_a_report_for_people_can_be_read(adapter: Path, model: Path) -> None:
    good = check(adapter, "--model", model)
    assert good.exit_code == 0
    assert good.stdout.splitlines()[-1] == "The adapter can be served."
    build.save(adapter, {"use_qalora": True, "megatron_config": {"a": 1}})
    bad = check(adapter, "--model", model)
    assert bad.exit_code == 1
    assert bad.stdout.splitlines()[-3:] == [
        "The adapter is refused for 2 reasons:",
        "  - use_qalora is True: QALoRA is not served",
        "  - megatron_config is {'a': 1}: Megatron layers are not served",
    ]


def test_files_that_it_does_not_check_are_named(adapter: Path, model: Path) -> None:
    plain = report(adapter, "--model", model)
    (adapter / "chat_template.jinja").write_text("{% if")
    (adapter / "generation_config.json").write_text("{")
    found = report(adapter, "--model", model)
    warning = "not checked here; the digest is that without them"
    assert found["warnings"] == [f"chat_template.jinja, generation_config.json: {warning}"]
    assert (found["ok"], found["digest"]) == (True, plain["digest"])
    lines = check(adapter, "--model", model).stdout.splitlines()
    assert lines[-1] == "The weights can be served."
    assert lines[-2].startswith("warning: chat_template.jinja")


def test_without_a_base_model_it_checks_what_needs_none_and_says_so(
    adapter: Path, tmp_path: Path
) -> None:
    found = report(adapter, "--data-dir", tmp_path / "nothing")
    assert found["ok"]
    assert found["targets"] == [Q0, Q1]
    assert "no base model is known" in str(found["warnings"])
    build.save(adapter, {"lora_bias": True, "use_dora": True})
    assert not report(adapter, "--data-dir", tmp_path / "nothing")["ok"]


def test_the_model_that_was_served_last_counts(adapter: Path, tmp_path: Path) -> None:
    shapes = LinearShapes(linears={Q0: (OUT, IN + 1), Q1: (OUT, IN)}, embeddings={}, heads=())
    write_record(tmp_path / "base.json", BaseRecord("served", tmp_path, shapes))
    found = report(adapter, "--data-dir", tmp_path)
    assert not found["ok"]
    assert Q0 in str(found["problems"])
    assert found["warnings"] == []


def test_what_is_no_adapter_has_no_digest(tmp_path: Path) -> None:
    found = report(tmp_path / "nothing", "--data-dir", tmp_path)
    assert found["digest"] is None
    assert "No such file" in str(found["problems"])


def test_a_folder_that_is_no_model_is_an_expected_error(adapter: Path, tmp_path: Path) -> None:
    result = check(adapter, "--model", tmp_path)
    assert result.exit_code == 1
    assert "cannot be read" in result.stderr


def test_it_needs_no_torch(adapter: Path, model: Path) -> None:
    code = (
        "import sys\n"
        "from loraplex.platform.cli.main import app\n"
        f"sys.argv = {['loraplex', 'adapter', 'check', str(adapter), '--model', str(model)]}\n"
        "try:\n    app()\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "print([name for name in ('torch', 'transformers', 'peft') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "[]"
