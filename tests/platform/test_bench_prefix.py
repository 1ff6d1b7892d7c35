"""The benchmark of the prefix cache: what it reports and refuses. No time is asserted."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from tests import tiny_models
from typer.testing import CliRunner

from loraplex.platform.cli.bench import app


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> object:
    model = tiny_models.save_model(tmp_path_factory.mktemp("tiny"), tiny_models.llama_config())
    data_dir = tmp_path_factory.mktemp("data")

    def invoke(tokens: str) -> Result:
        options = ["--tokens", tokens, "--repeats", "2", "--data-dir", str(data_dir), "--json"]
        environment = {"LORAPLEX_MODEL": str(model), "LORAPLEX_THREADS": "1"}
        return CliRunner().invoke(app, ["prefix", *options], env=environment)

    return invoke


def test_prompts_are_timed_cold_warm_and_swapped(run: object) -> None:
    result = run("20,50")
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.output.splitlines() if line.startswith("{")]
    assert [row["prompt_tokens"] for row in rows] == [20, 50]
    for row in rows:
        assert min(row["cold_ttft_ms"], row["warm_ttft_ms"], row["ratio"], row["swap_ms"]) > 0
        assert "float32" in row["machine"]


@pytest.mark.parametrize(("tokens", "says"), [("5,x", "numbers from 1"), ("256", "at most 256")])
def test_what_cannot_be_measured_is_refused(run: object, tokens: str, says: str) -> None:
    result = run(tokens)
    assert result.exit_code == 1
    assert says in result.output


def test_a_prompt_that_was_asked_before_is_found(run: object, tmp_path: Path) -> None:
    from loraplex.platform.bench.decode import Ask, ask_all  # noqa: PLC0415  torch is loaded late
    from loraplex.platform.bench.prefix import prepare_prefix_bench  # noqa: PLC0415  torch
    from loraplex.platform.settings import Settings  # noqa: PLC0415  as above

    model = tiny_models.save_model(tmp_path / "tiny", tiny_models.llama_config())
    settings = Settings(data_dir=tmp_path, model=str(model), threads=1)
    bench = prepare_prefix_bench(settings, 40, 0, 0.0)
    parts = bench.subject.new_engine()
    for _ in range(2):
        ask_all(parts, [Ask(None, tuple(range(2, 42)))], 1)
    parts.transfers.close()
    assert parts.scheduler.blocks.counts.found_tokens == 32
