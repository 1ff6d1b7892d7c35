"""Percentiles, rates and goodput, on records made by hand."""

import pytest

from loraplex.platform.load.outcome import NOT_SENT_CONCURRENCY, OK, UNFINISHED, Outcome
from loraplex.platform.load.summary import Slo, percentiles, summarise, summarise_run

OUTCOMES = [
    # TTFT 100 ms, 4 tokens in 300 ms: TPOT 100 ms
    Outcome("a", 0.0, OK, 0.5, 0.6, 0.9, 1.0, prompt_tokens=10, completion_tokens=4),
    # TTFT 300 ms, 11 tokens in 200 ms: TPOT 20 ms
    Outcome("a", 1.0, OK, 1.0, 1.3, 1.5, 1.5, prompt_tokens=20, completion_tokens=11),
    # TTFT 50 ms, one token: no TPOT
    Outcome("b", 2.0, OK, 2.1, 2.15, 2.15, 2.2, prompt_tokens=30, completion_tokens=1),
    Outcome("b", 2.5, "429", 2.5, end_s=2.6),
    Outcome("b", 3.0, UNFINISHED, 3.0),
    Outcome("a", 4.0, NOT_SENT_CONCURRENCY),
]


def test_percentiles_lie_between_neighbours() -> None:
    assert percentiles([4.0, 1.0, None, 3.0, 2.0, 5.0]) == pytest.approx(
        {"p50": 3.0, "p90": 4.6, "p99": 4.96, "max": 5.0}
    )
    assert percentiles([None]) is None


def test_latencies_are_those_of_requests_that_ended_well() -> None:
    summary = summarise(OUTCOMES, Slo(), duration_s=5.0)
    assert summary["ttft_ms"] == pytest.approx({"p50": 100, "p90": 260, "p99": 296, "max": 300})
    assert summary["tpot_ms"] == pytest.approx({"p50": 60, "p90": 92, "p99": 99.2, "max": 100})
    assert summary["e2e_ms"] == pytest.approx({"p50": 500, "p90": 500, "p99": 500, "max": 500})


def test_counts_are_over_all_that_were_due() -> None:
    summary = summarise(OUTCOMES, Slo(), duration_s=5.0)
    assert (summary["requests"], summary["ok"]) == (6, 3)
    assert summary["errors"] == {"429": 1, "not_sent_max_concurrency": 1, "unfinished": 1}
    assert (summary["prompt_tokens"], summary["output_tokens"]) == (60, 16)
    assert summary["output_tokens_per_s"] == pytest.approx(3.2)
    assert summary["completed_per_s"] == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("slo", "num_good"),
    [
        (Slo(), 3),
        (Slo(ttft_ms=100), 2),
        (Slo(tpot_ms=50), 2),  # an answer of one token has no TPOT to miss
        (Slo(ttft_ms=200, tpot_ms=50), 1),
        (Slo(ttft_ms=1), 0),
    ],
)
def test_goodput_counts_requests_that_keep_every_objective(slo: Slo, num_good: int) -> None:
    summary = summarise(OUTCOMES, slo, duration_s=5.0)
    assert summary["goodput_per_s"] == pytest.approx(num_good / 5)
    assert summary["good_share"] == pytest.approx(num_good / 6)


def test_a_run_is_summed_up_in_all_and_by_model_with_its_rates_and_lag() -> None:
    run = summarise_run(OUTCOMES, Slo())
    assert run["duration_s"] == 4.0
    assert run["asked_per_s"] == pytest.approx(6 / 4)
    assert run["sent_per_s"] == pytest.approx(5 / 3)
    assert run["lag_ms"]["max"] == pytest.approx(500)
    assert run["all"]["requests"] == 6
    assert {model: group["requests"] for model, group in run["models"].items()} == {"a": 3, "b": 3}
    assert run["models"]["b"]["completed_per_s"] == pytest.approx(1 / 4)
