"""What commands say of themselves, and what they refuse before anything is started."""

from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loraplex.platform.cli.main import app
from loraplex.platform.cli.output import counted


def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("asked", ["version", "--version"])
def test_the_version_is_told_both_ways(asked: str) -> None:
    assert said(asked) == version("loraplex") + "\n"


def test_what_only_serve_needs_is_not_in_the_help_of_worker() -> None:
    told = said("worker", "--help")
    assert "--stop-with-parent" not in told
    assert told.count("Default: auto.") == 2
    assert "Default: demo." in told


@pytest.mark.parametrize("model", ["./nothing", "/nothing/here"])
def test_a_path_without_a_model_is_refused_as_typed_before_a_worker_starts(
    tmp_path: Path, model: str
) -> None:
    asked = ["serve", "--model", model, "--data-dir", str(tmp_path), "--port", "0"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 1
    assert f"there is no model at {model};" in result.stderr
    assert not (tmp_path / "loraplex.db").exists()


def test_one_is_singular() -> None:
    assert [counted(number, "row") for number in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]


def test_a_misspelt_variable_is_refused_with_the_setting_that_it_resembles(tmp_path: Path) -> None:
    asked = ["tenant", "list", "--data-dir", str(tmp_path)]
    result = CliRunner().invoke(app, asked, env={"LORAPLEX_MAX_RUNING": "4"})
    assert result.exit_code == 1
    assert "LORAPLEX_MAX_RUNING in the environment is no setting" in result.stderr
    assert "did you mean LORAPLEX_MAX_RUNNING?" in result.stderr
