"""The benchmark of routes: what it reports and refuses, and its arithmetic. No time is asserted."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loraplex.platform.bench.errors import BenchRefused
from loraplex.platform.bench.machine import this_machine
from loraplex.platform.bench.routes.plan import (
    ROUTES,
    Beside,
    RatioSamples,
    RouteName,
    RoutesPlan,
    RoutesResult,
    Samples,
    ScaleSamples,
)
from loraplex.platform.bench.routes.ratios import (
    bandwidth_gbps,
    choice_regret,
    rows,
    worst_chosen_over_wait,
)
from loraplex.platform.bench.routes.report import as_json, with_measured
from loraplex.platform.bench.routes.run import throttle
from loraplex.platform.bench.scale import ScaleFacts
from loraplex.platform.cli.bench import app

ROW = {"load_over_prefill", "route", "ttft_over_resident", "tpot_over_resident", "bandwidth_gbps"}
TTFT_MS: dict[RouteName, Sequence[float]] = {
    "resident": (100, 200),
    "wait": (200, 400),
    "layer-wise": (150, 300),
    "assist": (120, 260),
    "chosen": (132, 286),
    "prefetch": (101, 202),
}


def samples(ttft_ms: Sequence[float], gap_ms: float, token_id: int = 7) -> Samples:
    beside = [Beside((gap_ms, 3 * gap_ms), 2 * ms) for ms in ttft_ms]
    return Samples([*ttft_ms], [7, token_id], beside, {"wait": 2}, 4)


def result(num_registered: int = 2000) -> RoutesResult:
    at_one = {route: samples(ms, 10) for route, ms in TTFT_MS.items()}
    at_one["wait"] = samples(TTFT_MS["wait"], 11, token_id=8)
    # Here a choice takes as long as waiting, and waiting is the fastest.
    at_two = {route: samples(TTFT_MS["wait"], 10) for route in ROUTES}
    return RoutesResult(
        machine=this_machine("cpu", "float32", 0.0),
        plan=RoutesPlan(ratios=(1.0, 2.0), rounds=2, num_registered=num_registered),
        model="tiny",
        adapter_bytes=2_000_000,
        ratios=(
            RatioSamples(1.0, 90.0, 20_000_000, at_one),
            RatioSamples(2.0, 110.0, 10_000_000, at_two),
        ),
        scale=ScaleSamples(ScaleFacts(num_registered, 1000, 0.9), (90, 110), (100, 100)),
    )


def test_ratios_are_medians_of_those_within_each_round() -> None:
    found = {(row.load_over_prefill, row.route): row for row in rows(result())}
    assert found[1.0, "resident"].ttft_over_resident == 1.0
    assert found[1.0, "resident"].measured_load_over_prefill == pytest.approx(90 / 150)
    assert found[1.0, "assist"].ttft_over_resident == pytest.approx((1.2 + 1.3) / 2)
    assert found[1.0, "assist"].beside_ttft_over_resident == pytest.approx((1.2 + 1.3) / 2)
    wait = found[1.0, "wait"]
    assert wait.tpot_ms is not None
    assert wait.tpot_ms.median == 22
    assert wait.tpot_over_resident == pytest.approx(1.1)
    assert wait.tpot_p99_over_resident == pytest.approx(1.1)
    assert wait.tokens_equal == 0.5
    assert wait.bandwidth_gbps == 0.02


def test_regret_is_of_the_choice_beside_the_fastest_route_of_each_ratio() -> None:
    assert choice_regret(result()) == pytest.approx((0.1 + 0.0) / 2)
    assert worst_chosen_over_wait(result()) == pytest.approx(1.0)


def test_what_a_request_cannot_choose_is_not_what_its_choice_is_compared_with() -> None:
    assert TTFT_MS["prefetch"] < TTFT_MS["assist"], "else this shows nothing"
    assert choice_regret(result()) < 0.1


def test_a_copy_is_throttled_to_take_as_many_prompts_as_were_asked_for() -> None:
    assert bandwidth_gbps(result()) == pytest.approx(0.02)
    assert throttle(2_000_000, 100.0, 0.5) == 40_000_000
    with pytest.raises(BenchRefused, match="larger --rank"):
        throttle(100_000, 100.0, 2)


def test_json_says_all_that_is_promised_of_it() -> None:
    document = json.loads(json.dumps(as_json(result())))
    assert {"bandwidth_gbps", "rows", "choice_regret", "scale_2000_over_5"} <= document.keys()
    assert document["is_emulated"] is True
    assert document["scale_2000_over_5"] == pytest.approx(1.0)
    assert [(row["load_over_prefill"], row["route"]) for row in document["rows"]] == [
        (ratio, route) for ratio in (1.0, 2.0) for route in ROUTES
    ]
    for row in document["rows"]:
        assert row.keys() >= ROW


def test_the_ratio_of_2000_is_of_2000_alone() -> None:
    document = as_json(result(num_registered=40))
    assert document["scale_2000_over_5"] is None
    assert document["scale"]["over_5"] == pytest.approx(1.0)


def test_a_run_replaces_what_the_run_before_wrote_and_nothing_else() -> None:
    page = with_measured("", result())
    assert page.startswith("# `loraplex bench routes`\n")
    told = page.replace("| assist |", "| old |") + "\n## Read by hand\n"
    again = with_measured(told, result())
    assert "| old |" not in again
    assert again == page + "\n## Read by hand\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--ratios", "1,1"), "different numbers"),
        (("--ratios", "0"), "different numbers"),
        (("--ratios", "1,x"), "different numbers"),
        (("--rounds", "0"), "--rounds"),
        (("--quick", "--prompt-tokens", "2048"), "holds"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    options: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    ran = CliRunner().invoke(app, ["routes", *options, "--data-dir", str(tmp_path)])
    assert ran.exit_code != 0
    assert says in ran.output


def test_a_quick_run_measures_every_route_and_writes_its_page(tmp_path: Path) -> None:
    options = ["--quick", "--json", "--rounds", "1", "--ratios", "1", "--registered", "8"]
    where = ["--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    ran = CliRunner().invoke(app, ["routes", *options, *where])
    assert ran.exit_code == 0, ran.output
    document = json.loads(ran.stdout.splitlines()[-1])
    assert document["run"]["is_quick"] is True
    assert [row["route"] for row in document["rows"]] == [*ROUTES]
    for row in document["rows"]:
        assert min(row["ttft_over_resident"], row["tpot_over_resident"]) > 0
        assert row["tokens_equal"] == 1.0
    assert document["scale"]["over_5"] > 0
    assert "A quick run" in (tmp_path / "out" / "routes.md").read_text()
    assert (tmp_path / "out" / "routes.png").stat().st_size > 0
