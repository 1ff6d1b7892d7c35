"""The benchmark of the planner."""

from dataclasses import replace

from typer.testing import CliRunner

from loraplex.engine.fair_admission import FairAdmission
from loraplex.platform.bench import planner
from loraplex.platform.cli.bench import app
from loraplex.platform.fair import fair_settings
from loraplex.platform.settings import Settings


def test_the_planner_is_timed_under_the_load_that_is_asked_for() -> None:
    options = ["--running", "4", "--waiting", "6", "--adapters", "3", "--steps", "5", "--json"]
    result = CliRunner().invoke(app, ["planner", *options])
    assert result.exit_code == 0, result.output
    assert '"num_steps": 5' in result.output
    assert '"p50_us"' in result.output


def test_a_bench_shares_its_machine_as_a_worker_does() -> None:
    world = planner._World(planner.Load(2, 2, 1), 0)
    policy = world.scheduler._waiting
    assert isinstance(policy, FairAdmission)
    assert policy.main._settings == replace(fair_settings(Settings()), max_open=2)
    assert policy.main._settings.max_drain_ms > 0
