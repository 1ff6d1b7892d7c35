import json
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loraplex.engine.simulation.metrics import Metrics
from loraplex.platform.cli.main import app

SMALL = ["simulate", "--trace", "generated", "--tenants", "3", "--duration", "5"]


def test_a_run_is_told_as_one_json_object_with_all_metrics() -> None:
    result = CliRunner().invoke(app, [*SMALL, "--adapters", "2", "--slots", "2", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert list(told) == [field.name for field in fields(Metrics)]
    assert told["tokens_per_s"] > 0


def test_a_report_is_a_page_that_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*SMALL, "--report", str(tmp_path / "r")])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "r" / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "http" not in page
    assert len((tmp_path / "r" / "requests.csv").read_text().splitlines()) > 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--policy", "best"], "policy 'best' is not one of: fair"),
        (["--cache", "best"], "cache 'best' is not one of: worth"),
        (["--profile", "b200"], "profile 'b200'"),
        (["--trace", "/nowhere"], "/nowhere"),
        (["--max-tokens", "20000"], "--max-tokens 20000"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(options: list[str], told: str) -> None:
    result = CliRunner().invoke(app, [*SMALL, *options])
    assert result.exit_code == 1
    assert told in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("ranks", ["", "8,x", "0", "512"])
def test_ranks_that_are_none_are_refused(ranks: str) -> None:
    result = CliRunner().invoke(app, [*SMALL, "--ranks", ranks])
    assert result.exit_code == 2
    assert "like 8,16,64" in result.stderr
