"""The check of GPUs, as far as a CPU shows it: its stages, what it tells, all of it run small."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from loraplex.platform.bench.gpu import report, stage
from loraplex.platform.bench.gpu.records import (
    Check,
    Comparison,
    Fact,
    Ratio,
    Record,
    Time,
    equal_bits,
)
from loraplex.platform.bench.gpu.stage import Outcome, Setup, Stage, run_stages

ROOT = Path(__file__).parents[2]
SETUP = Setup(torch.device("cpu"), small=True, facts={"known": 2.0})
TRIED = (
    *("ceilings", "lora float32", "attention float32", "model", "graphs", "7B layers", "1B Llama"),
    *("lora times", "loads", "CPU assist", "attention times", "routes"),
)


def good(setup: Setup) -> Iterator[Record]:
    yield Fact("doubled", 2 * setup.facts["known"])


def raises(_: Setup) -> Iterator[Record]:
    yield Check("the first", ok=True)
    raise ValueError("no such kernel")


def dies(_: Setup) -> Iterator[Record]:
    yield Check("the first", ok=True)
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(_: Setup) -> Iterator[Record]:
    yield Check("the first", ok=True)
    threading.Event().wait()


def endless(_: Setup) -> Iterator[Record]:
    while True:
        yield Check("again", ok=True)


@pytest.fixture(autouse=True)
def _little_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "_GRACE_S", 0.2)


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (raises, "ValueError at test_gpu_check.py"),
        (dies, "its process ended with status -9"),
        (hangs, "killed: it went on after its budget"),
    ],
)
def test_a_stage_that_fails_keeps_what_it_told_and_others_go_on(run, why: str) -> None:
    failed, other = run_stages([Stage("bad", 0.5, run), Stage("good", 30, good)], SETUP, 60)
    assert failed.error is not None
    assert why in failed.error
    assert failed.records == (Check("the first", ok=True),)
    assert other.error is None
    assert other.facts == {"doubled": 4.0}
    assert not report.is_good([failed, other])
    assert report.is_good([other])


def test_a_stage_is_cut_off_when_its_budget_or_that_of_the_whole_is_over() -> None:
    (own,) = run_stages([Stage("endless", 0.1, endless)], SETUP, 60)
    (whole,) = run_stages([Stage("endless", 60, endless)], SETUP, 0.1)
    for outcome in (own, whole):
        assert outcome.error == "cut off: 0.1 s are over"
        assert outcome.records


def test_a_result_is_right_within_its_tolerance_only() -> None:
    expected = torch.tensor([1.0, -100.0], dtype=torch.float64)
    comparison = Comparison("numbers", (1e-3, 1e-3))
    assert not comparison.check().ok, "nothing was compared"
    comparison.add("near", torch.tensor([1.001, -100.05]), expected)
    assert comparison.check().ok
    comparison.add("off", torch.tensor([1.001, -100.2]), expected)
    wrong = comparison.check()
    assert (wrong.ok, wrong.num_cases, wrong.why) == (False, 2, "off")


def test_what_is_no_number_is_worse_than_any() -> None:
    comparison = Comparison("numbers", (1e-3, 1e-3))
    expected = torch.ones(2, dtype=torch.float64)
    comparison.add("good", torch.ones(2), expected)
    comparison.add("no number", torch.tensor([1.0, float("nan")]), expected)
    comparison.add("good again", torch.ones(2), expected)
    assert not comparison.check().ok
    assert comparison.check().why == "no number"
    json.dumps(comparison.check().worst, allow_nan=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bits_are_told_apart_where_values_are_not(dtype: torch.dtype) -> None:
    one = torch.tensor([0.0, float("nan"), 3.0], dtype=dtype)
    assert equal_bits("same", one, one.clone()).ok
    other = one.clone()
    other[0] = -0.0
    assert equal_bits("signs", one, other).why == "1 values differ"


OUTCOMES = (
    Outcome("ceilings", 15, 1.5, (Fact("card", "NVIDIA H200"), Fact("copy_gb_per_s", 4300.0))),
    Outcome(
        "lora",
        90,
        20,
        (
            Check("lora, decodes", ok=True, num_cases=12, worst=0.25),
            Check("lora, prompts", ok=False, num_cases=3, worst=7.0, why="70 rows"),
            Time("a step", 0.5, 0.25),
            Ratio("distinct ÷ one", 0.8, 0.9),
        ),
        "cut off: 90 s are over",
    ),
)


def test_the_page_tells_what_holds_what_was_missed_and_what_failed() -> None:
    page = report.as_markdown(OUTCOMES, 21.5)
    assert page.startswith("# `make gpu-check` on NVIDIA H200\n")
    assert "**not all of it holds**; of 1 targets 1 are missed" in page
    assert "trial" not in page
    assert "| distinct ÷ one | 0.80 | ≥ 0.9 (missed) |" in page
    assert "| lora, decodes | 12 | 0.250 | yes |" in page
    assert "| lora, prompts | 3 | 7.000 | **no**: 7 times what is tolerated; 70 rows |" in page
    assert "| a step | 0.5000 | 0.2500 | 2.00 |" in page
    assert "| lora | 20.0 | 90 | cut off: 90 s are over |" in page
    assert report.file_name(OUTCOMES) == "gpu-nvidia-h200"
    assert "lora: FAILED, 1 of 2 checks hold" in report.line(OUTCOMES[1])


def test_the_page_of_a_trial_says_at_its_head_that_times_mean_nothing_and_judges_no_target() -> (
    None
):
    page = report.as_markdown(OUTCOMES, 21.5, is_trial=True)
    head = page.partition("## ")[0]
    assert "shapes are tiny" in head
    assert "mean nothing" in head
    assert "| distinct ÷ one | 0.80 |\n" in page
    for judged in ("missed", "wanted", "the card's own clock"):
        assert judged not in page
    assert report.as_json(OUTCOMES, 21.5, is_trial=True)["is_trial"] is True


def test_the_json_holds_each_stage_with_all_that_it_told() -> None:
    document = json.loads(json.dumps(report.as_json(OUTCOMES, 21.5)))
    assert document["card"] == "NVIDIA H200"
    assert document["ok"] is False
    kinds = [record["kind"] for record in document["stages"][1]["records"]]
    assert kinds == ["check", "check", "time", "ratio"]


def test_a_missed_target_fails_nothing() -> None:
    assert report.is_good([Outcome("ratios", 1, 1, (Ratio("slow", 0.1, 0.9),))])


def check(*options: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, "-m", "loraplex.platform.bench.gpu.check", *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=environment
    )


def test_all_of_it_runs_small_on_a_cpu(tmp_path: Path) -> None:
    done = check("--device", "cpu", "--out", str(tmp_path), "--stages", *TRIED)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.json")
    document = json.loads(path.read_text())
    assert [found["name"] for found in document["stages"]] == [*TRIED]
    assert document["ok"] is True
    told = {record["name"] for found in document["stages"] for record in found["records"]}
    assert {
        "lora, decodes, float32",
        "attention, Triton, mixed, float32",
        "a tiny Llama's logits are the CPU's, float32",
        "1B Llama: base with LoRA enabled ÷ disabled",
        "7B layers, 2 rows r16: all distinct ÷ one adapter",
        "most tokens at which the host is no slower than the copy, r8",
        "first tokens of all routes are those on an adapter that is there",
        "the host computes layers that have not come",
        "first token (host's clock), r16, 64 tokens, 16 GB/s, assist",
        "fastest, r16, 64 tokens, the card's link",
    } <= told
    page = path.with_suffix(".md").read_text()
    assert page.startswith("# `make gpu-check` on none")
    assert "**A trial of the script itself, on a CPU.**" in page
    assert "missed" not in page
    for name in TRIED:
        assert f"{name}: ok" in done.stdout


@pytest.mark.parametrize(
    ("python", "why"),
    [
        ((), "is not built for a GPU" if torch.version.cuda is None else "finds no GPU here"),
        (("-S",), "has no torch"),  # without site-packages
    ],
    ids=["torch without a card", "no torch"],
)
def test_without_torch_or_a_card_it_says_in_one_line_what_is_needed(
    python: tuple[str, ...], why: str
) -> None:
    if torch.cuda.is_available() and not python:
        pytest.skip("there is a card")
    done = check(python=python)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert why in line
    assert "make gpu-check PYTHON=.venv/bin/python ARGS='--device cpu'" in line
