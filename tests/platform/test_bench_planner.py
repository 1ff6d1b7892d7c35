"""The benchmark of the planner."""

from typer.testing import CliRunner

from loraplex.platform.cli.bench import app


def test_the_planner_is_timed_under_the_load_that_is_asked_for() -> None:
    options = ["--running", "4", "--waiting", "6", "--adapters", "3", "--steps", "5", "--json"]
    result = CliRunner().invoke(app, ["planner", *options])
    assert result.exit_code == 0, result.output
    assert '"num_steps": 5' in result.output
    assert '"p50_us"' in result.output
