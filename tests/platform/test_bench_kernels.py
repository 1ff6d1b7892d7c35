"""The benchmark of kernels: what it reports and refuses. No time is asserted."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from loraplex.platform.bench.floors import Floors, Work
from loraplex.platform.bench.kernels.attention import attention_cases
from loraplex.platform.bench.kernels.case import Absent, Case, Contender
from loraplex.platform.bench.kernels.dense import dense_cases
from loraplex.platform.bench.kernels.lora import lora_cases
from loraplex.platform.bench.kernels.plan import KernelPlan, KernelsResult
from loraplex.platform.bench.kernels.report import as_json, as_markdown
from loraplex.platform.bench.kernels.run import measure_case
from loraplex.platform.bench.kernels.shape import KernelShape
from loraplex.platform.bench.machine import this_machine
from loraplex.platform.cli.bench import app

SHAPE = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 80,
    "vocab_size": 96,
}
ROW = {
    *("op", "case", "rows", "layers", "dtype", "contender", "min_ms", "median_ms", "repeats"),
    *("num_bytes", "flops", "bytes_floor_ms", "flops_floor_ms", "floor_ms"),
    *("over_floor", "over_ours"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shape")
    (folder / "config.json").write_text(json.dumps(SHAPE))
    return folder


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def plan(model: Path, data_dir: Path) -> KernelPlan:
    return KernelPlan(
        shape=KernelShape.of_config(model),
        ops=("lora",),
        dtypes=(torch.float32, torch.bfloat16),
        rows=(1, 3),
        contexts=(5, 40),
        prompts=(7,),
        prefill=(3, 9),
        layers=2,
        seconds=0,
        seed=0,
        is_quick=True,
        kernels_dir=data_dir / "kernels",
    )


def invoke(*options: str) -> Result:
    # The number of threads is the process's, and other tests run in it.
    threads = ("--threads", str(torch.get_num_threads()))
    return CliRunner().invoke(app, ["kernels", *threads, *options])


@pytest.fixture(scope="module")
def out(model: Path, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out") / "charts"
    where = ["--model", str(model), "--data-dir", str(data_dir), "--out", str(folder)]
    sizes = ["--quick", "--seconds", "0", "--rows", "1,3"]
    result = invoke(*where, *sizes, "--json")
    assert result.exit_code == 0, result.output
    (folder / "printed.json").write_text(result.stdout)
    return folder


@pytest.fixture(scope="module")
def report(out: Path) -> dict:
    (line,) = (out / "printed.json").read_text().splitlines()
    return json.loads(line)


def test_json_says_machine_floors_and_each_row_beside_its_floor(report: dict) -> None:
    assert report.keys() == {"machine", "run", "floors", "rows", "absent", "wrong"}
    assert report["run"]["shape"]["hidden_size"] == SHAPE["hidden_size"]
    floors = report["floors"]
    assert floors.keys() == {"read_gb_per_s", "copy_gb_per_s", "gemm_gflop_per_s"}
    for row in report["rows"]:
        assert row.keys() == ROW
        assert 0 < row["min_ms"] <= row["median_ms"]
        assert row["bytes_floor_ms"] == pytest.approx(
            row["num_bytes"] / floors["read_gb_per_s"] / 1e6
        )
        assert row["floor_ms"] == max(row["bytes_floor_ms"], row["flops_floor_ms"])
        assert row["over_floor"] == pytest.approx(row["min_ms"] / row["floor_ms"])


def test_each_contender_is_measured_or_told_of_with_a_reason(report: dict) -> None:
    contenders = {
        "lora": {
            *("ours", "ours, torch", "loop over adapters", "concatenate and mask"),
            "gather + bmm",
        },
        "dense": {"ours", "oneDNN packed", "F.linear"},
        "attention": {"ours", "ours, torch", "gather + SDPA, each alone"},
        "elementwise": {"ours", "torch, as models write it"},
    }
    told = [(row, row["contender"]) for row in report["rows"]]
    told += [(row, row["name"]) for row in report["absent"]]
    for op, names in contenders.items():
        cases = {(row["case"], row["dtype"]) for row, _ in told if row["op"] == op}
        assert {dtype for _, dtype in cases} == {"float32", "bfloat16"}
        for case in cases:
            of_case = [
                name for row, name in told if (row["op"], row["case"], row["dtype"]) == (op, *case)
            ]
            assert names <= {*of_case}
            assert len(of_case) == len({*of_case})
    assert all(row["reason"] for row in report["absent"])
    assert report["wrong"] == []


def test_out_holds_the_tables_as_markdown_and_a_chart(out: Path) -> None:
    page = (out / "kernels.md").read_text()
    assert "![Time ÷ floor](kernels.png)" in page
    assert "| 16 adapters r8–64 | 2 | float32 | ours |" in page
    assert "load average before" in page
    assert (out / "kernels.png").read_bytes().startswith(b"\x89PNG")


def test_a_quick_run_says_so_in_json_and_page_and_a_whole_one_does_not(
    out: Path, report: dict, plan: KernelPlan
) -> None:
    assert (report["run"]["is_quick"], report["run"]["layers"]) == (True, 2)
    page = (out / "kernels.md").read_text()
    assert "**Quick: 2 of 2 layers, fewer and shorter cases." in page
    assert "all linear layers but the head (quick: 2 of 2 layers)\n" in page
    assert {row["case"] for row in report["rows"]} >= {"4 prompts of 64, 4 adapters r8–64"}
    floors = Floors(1, 1, {"float32": 1})
    whole = KernelsResult(
        this_machine("cpu", "float32", 0.0), replace(plan, is_quick=False), floors, ()
    )
    assert "uick" not in as_markdown(whole, "kernels.png")
    assert json.loads(json.dumps(as_json(whole)))["run"]["is_quick"] is False


def test_without_a_compiler_the_compiled_kernel_is_left_out_with_a_reason(
    plan: KernelPlan,
) -> None:
    for case in lora_cases(plan, None):
        ours = case.contenders[0]
        assert isinstance(ours, Absent)
        assert "a C++ compiler is needed" in ours.reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_contender_that_computes_wrong_is_refused_and_not_timed(dtype: torch.dtype) -> None:
    expected = torch.ones(3, 4, dtype=torch.float64)
    ran = []

    def contender(name: str, output: torch.Tensor) -> Contender:
        return Contender(name, lambda: ran.append(name), lambda: output)

    right = expected.to(dtype)
    off, not_finite = right.clone(), right.clone()
    off[2, 3] = 1.1
    not_finite[0, 0] = float("nan")
    result = measure_case(
        Case(
            op="dense",
            name="three",
            rows=3,
            layers=1,
            dtype=dtype,
            work=Work(1, 1),
            expected=expected,
            contenders=(
                contender("right", right),
                contender("off", off),
                contender("not finite", not_finite),
                contender("short", right[:2]),
                Absent("none", "not here"),
            ),
        ),
        seconds=0,
    )
    assert [each.name for each in result.wrong] == ["off", "not finite", "short"]
    assert [each.contender for each in result.timings] == ["right"]
    assert [each.name for each in result.absent] == ["none"]
    assert set(ran) == {"right"}


def test_a_lora_step_without_one_adapter_is_told_from_the_right_one(plan: KernelPlan) -> None:
    case = next(lora_cases(plan, None))
    (loop,) = [c for c in case.contenders if c.name == "loop over adapters"]
    assert isinstance(loop, Contender)
    without = replace(loop, output=lambda: torch.zeros_like(case.expected).float())
    assert measure_case(replace(case, contenders=(loop, without)), 0).wrong


def test_work_counts_each_weight_once_and_rows_at_their_true_rank(plan: KernelPlan) -> None:
    by_name = {case.name: case for case in lora_cases(plan, None) if case.dtype is torch.float32}
    widths = 2 * sum(out_width + in_width for out_width, in_width in plan.shape.linears)
    rows_bytes = sum(in_width + 2 * out_width for out_width, in_width in plan.shape.linears) * 8
    shared, distinct = by_name["16 rows on 1 adapter r32"], by_name["16 adapters r8–64"]
    assert shared.work == Work(widths * 32 * 4 + 16 * rows_bytes, 2 * widths * 16 * 32)
    assert distinct.work == Work(widths * 480 * 4 + 16 * rows_bytes, 2 * widths * 480)


def test_work_of_attention_is_what_its_rows_see(plan: KernelPlan) -> None:
    case = next(c for c in attention_cases(plan, None) if c.name == "a prompt of 7")
    assert case.work.flops == case.layers * 4 * 4 * 16 * (7 * 8 // 2)


def test_dense_layers_of_many_rows_are_those_of_one_layer(plan: KernelPlan) -> None:
    few, many = dense_cases(replace(plan, rows=(2, 300), dtypes=(torch.float32,)), None)
    assert (few.layers, many.layers) == (2, 1)
    params = sum(out_width * in_width for out_width, in_width in plan.shape.linears)
    assert few.work.flops == 2 * 2 * (2 * params + 96 * 48)
    assert many.work.flops == 2 * 300 * params


def test_floors_keep_the_best_of_a_run() -> None:
    first = Floors(10, 30, {"float32": 80, "bfloat16": 1})
    second = Floors(20, 25, {"float32": 70, "bfloat16": 2})
    best = Floors(20, 30, {"float32": 80, "bfloat16": 2})
    assert first.better(second) == second.better(first) == best
    assert best.bytes_ms(Work(20_000_000, 0)) == pytest.approx(1)
    assert best.flops_ms(Work(0, 80_000_000)) == pytest.approx(1)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--ops", "lora,none"), ("--ops", "lora,lora"), ("--rows", "0"), ("--rows", "1,1")],
)
def test_an_option_that_says_nothing_is_refused_by_name(option: str, value: str) -> None:
    result = invoke(option, value)
    assert result.exit_code == 2
    assert option in result.stderr


def test_a_folder_without_a_shape_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for folder in (tmp_path, tmp_path / "none"):
        result = invoke("--model", str(folder))
        assert result.exit_code == 1
        assert "config.json" in result.stderr
