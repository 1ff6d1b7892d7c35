"""When requests come: from public traces and from chance."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from loraplex.platform.load.arrivals import Arrival, poisson, with_models
from loraplex.platform.load.errors import LoadRefused
from loraplex.platform.load.prompts import make_prompt
from loraplex.platform.load.traces import read_trace


@pytest.fixture
def trace(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "trace"
        path.write_text(text)
        return path

    return write


def test_a_trace_with_tenants_is_read(trace) -> None:
    path = trace("arrival_s,tenant,input_tokens,output_tokens\n0.5,7,80,1\n2.5,a b,1504,4\n")
    assert read_trace(path) == [Arrival(0.0, 80, 1, "7"), Arrival(2.0, 1504, 4, "a b")]


def test_a_trace_with_clients_in_another_order_of_columns_is_read(trace) -> None:
    path = trace("output_tokens,arrival_s,input_tokens,client\n199,0,13,c1\n")
    assert read_trace(path) == [Arrival(0.0, 13, 199, "c1")]


def test_azures_dates_are_read_with_and_without_zone(trace) -> None:
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    of_2023 = trace(
        f"{header}2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
    )
    first, second = read_trace(of_2023)
    assert (first.at_s, first.input_tokens, first.output_tokens) == (0.0, 4808, 10)
    assert second.at_s == pytest.approx(0.052)
    of_2024 = trace(
        f"{header}2024-05-10 00:00:00.009930+00:00,1,2\n2024-05-10 00:00:01+00:00,3,4\n"
    )
    assert read_trace(of_2024)[1].at_s == pytest.approx(0.99007)


def test_mooncakes_json_lines_are_read(trace) -> None:
    path = trace(
        '{"timestamp": 1000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
        '{"timestamp": 4000, "input_length": 7322, "output_length": 0, "hash_ids": []}\n'
    )
    assert read_trace(path) == [Arrival(0.0, 6758, 500), Arrival(3.0, 7322, 1)]


def test_arrivals_are_in_order_sped_up_and_cut(trace) -> None:
    path = trace("arrival_s,input_tokens,output_tokens\n9,1,1\n3,2,2\n5,3,3\n")
    assert read_trace(path, speed=2.0, max_requests=2) == [Arrival(0.0, 2, 2), Arrival(1.0, 3, 3)]


def test_unknown_columns_are_refused_by_name(trace) -> None:
    with pytest.raises(LoadRefused, match=r"columns when, who; known are arrival_s, input_tokens"):
        read_trace(trace("when,who\n1,2\n"))


@pytest.mark.parametrize("row", ["2,x,1", "2,1", "-,1,1", "2,1,-1", "inf,1,1", "nan,1,1"])
def test_a_row_that_is_no_request_is_refused_with_its_line(trace, row: str) -> None:
    with pytest.raises(LoadRefused, match="line 3"):
        read_trace(trace(f"arrival_s,input_tokens,output_tokens\n1,1,1\n{row}\n"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "no requests"), ("a,b\n", "no requests"), ('{"timestamp": 1,\n', "line 1 is no JSON")],
)
def test_a_trace_without_requests_is_refused(trace, text: str, reason: str) -> None:
    with pytest.raises(LoadRefused, match=reason):
        read_trace(trace(text))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadRefused, match="cannot be read"):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LoadRefused, match="cannot be read"):
        read_trace(tmp_path / "binary")


def test_poisson_arrivals_depend_on_the_seed_alone_and_keep_the_rate() -> None:
    arrivals = list(poisson(4.0, 2000, (10, 20), seed=1))
    assert arrivals == list(poisson(4.0, 2000, (10, 20), seed=1))
    assert arrivals != list(poisson(4.0, 2000, (10, 20), seed=2))
    assert 2000 / arrivals[-1].at_s == pytest.approx(4.0, rel=0.1)
    gaps = [b.at_s - a.at_s for a, b in pairwise(arrivals)]
    below_mean = sum(gap < 0.25 for gap in gaps) / len(gaps)
    assert below_mean == pytest.approx(0.632, abs=0.04)  # 1 − 1/e, as exponential gaps have


def test_models_take_turns() -> None:
    arrivals = with_models([Arrival(float(i), 1, 1) for i in range(5)], ["a", "b"], None, seed=0)
    assert [arrival.model for arrival in arrivals] == ["a", "b", "a", "b", "a"]


def test_each_tenant_of_a_trace_stays_with_one_model() -> None:
    tenants = ["x", "y", "x", "z", "y", "x"]
    arrivals = [Arrival(0.0, 1, 1, tenant) for tenant in tenants]
    named = with_models(arrivals, ["a", "b"], None, seed=0)
    assert [arrival.model for arrival in named] == ["a", "b", "a", "a", "b", "a"]


def test_zipf_draws_models_by_rank() -> None:
    arrivals = [Arrival(0.0, 1, 1)] * 6000
    counts = Counter(a.model for a in with_models(arrivals, ["a", "b", "c"], 1.0, seed=3))
    # Weights 1, 1/2, 1/3.
    assert [counts[model] / 6000 for model in "abc"] == pytest.approx([6 / 11, 3 / 11, 2 / 11], 0.1)


def test_a_prompt_has_as_many_words_as_it_should_have_tokens() -> None:
    assert len(make_prompt(37, (0, 1)).split(" ")) == 37
    assert make_prompt(37, (0, 1)) == make_prompt(37, (0, 1)) != make_prompt(37, (0, 2))
