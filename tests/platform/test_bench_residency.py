"""The benchmark of adapters in memory, at a small size."""

import json

from typer.testing import CliRunner

from loraplex.platform.cli.bench import app


def test_neither_memory_holds_more_than_it_may_and_both_stay_flat() -> None:
    options = ["--registered", "40", "--host", "10", "--device", "3", "--cycles", "25", "--json"]
    result = CliRunner().invoke(app, ["residency", *options])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert (found["most_on_device"], found["most_on_host"]) == (3, 10)
    assert found["store"]["num_loads"] + found["host"]["num_loads"] >= 25 + 10
    assert found["host"]["num_loads"] > 0
    # Each load brings an adapter of 1 MiB and pushes one out.
    assert found["rss_end_mib"] - found["rss_full_mib"] < 10


def test_sizes_that_do_not_ascend_are_refused() -> None:
    result = CliRunner().invoke(app, ["residency", "--host", "10", "--device", "10"])
    assert result.exit_code == 1
    assert "must ascend" in result.output
