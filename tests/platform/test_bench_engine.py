"""The engine's benchmark: what it reports and refuses. No time is asserted."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from click.testing import Result
from tests import tiny_models
from typer.testing import CliRunner

from loraplex.engine.config import ModelConfig
from loraplex.engine.lora_linear import LoraLinear
from loraplex.engine.model import load_model
from loraplex.engine.runner import ModelRunner
from loraplex.platform.bench.bare import without_lora
from loraplex.platform.bench.phases import PHASES
from loraplex.platform.bench.random_model import LlamaShape, write_random_llama
from loraplex.platform.cli.bench import app
from loraplex.platform.processor import cpu_name

MACHINE = {"cpu", "cores", "threads", "device", "torch", "python", "dtype", "load_average"}
RATIOS = {
    *("decode_over_peft_16", "decode_over_mistralrs_16", "decode_over_vllm_16"),
    *("prefill_over_vllm_16", "base_over_vllm_base_16"),
    *("lora_over_base_16", "distinct_over_identical_16", "idle_tax", "cold_over_warm_ttft"),
    *("step_over_floor_16", "lora_extra_over_floor_16", "prefill_lora_over_base_16"),
    *("r128_beside_r8", "scale_2000_over_5"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save_model(tmp_path_factory.mktemp("tiny"), tiny_models.llama_config())


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out") / "charts"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the kernel is compiled, once."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def printed(model: Path, out: Path, data_dir: Path) -> list[str]:
    """What the command prints when it measures everything beside PEFT."""
    options = ["--requests", "2,17", "--new-tokens", "3", "--prompt-tokens", "5", "--repeats", "2"]
    where = ["--model", str(model), "--data-dir", str(data_dir), "--out", str(out)]
    threads = ["--threads", str(torch.get_num_threads())]
    command = ["engine", *where, *options, *threads, "--profile", "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    told = result.stderr.splitlines()
    assert {"warming up: loading the adapters", "warming up: peft, distinct"} <= {*told}
    turns = [line for line in told if line.startswith("repetition 1 of 2, case ")]
    assert "case 1 of" in turns[0]
    assert f"case {len(turns)} of {len(turns)}: " in turns[-1]
    assert "repetition 2 of 2" in result.stderr
    return result.stdout.splitlines()


@pytest.fixture(scope="module")
def report(printed: list[str]) -> dict:
    return json.loads(printed[0])


def invoke(*options: str) -> Result:
    # The number of threads is the process's, and other tests run in it.
    threads = ("--threads", str(torch.get_num_threads()))
    return CliRunner().invoke(app, ["engine", "--no-peft", *threads, *options])


def test_json_is_one_line_that_says_machine_rows_and_ratios(
    printed: list[str], report: dict
) -> None:
    assert len(printed) == 1
    assert report.keys() == {"machine", "run", "rows", "ratios", "profile"}
    assert report["machine"].keys() == MACHINE
    assert report["machine"]["dtype"] == "float32"
    assert report["machine"]["torch"] == torch.__version__
    assert report["ratios"].keys() == RATIOS


def test_every_case_is_measured_at_every_size_and_every_rank_warm_and_cold(report: dict) -> None:
    rows = report["rows"]
    decode = {
        (row["engine"], row["case"], row["num_requests"])
        for row in rows
        if row["metric"] == "decode_tokens_per_s"
    }
    ours = [("loraplex", case) for case in ("distinct", "identical", "base", "base_lora_off")]
    cases = [*ours, ("peft", "distinct"), ("peft", "base")]
    assert decode == {(*case, size) for size in (2, 17) for case in cases}
    prefill = {
        (row["engine"], row["case"], row["num_requests"])
        for row in rows
        if row["metric"] == "prefill_ms"
    }
    assert prefill == decode
    ttft = {(row["case"], row["rank"]) for row in rows if row["metric"] == "ttft_ms"}
    assert ttft == {(case, rank) for case in ("warm", "cold") for rank in (8, 16, 32, 64)}
    assert len(rows) == len(decode) + len(prefill) + len(ttft)
    for row in rows:
        assert 0 < row["min"] <= row["median"] <= row["max"]
        assert row["repeats"] == 2


def test_the_engine_and_peft_do_the_same_work(report: dict) -> None:
    assert report["run"]["tokens_equal_to_peft"] > 0.99


def test_a_ratio_whose_parts_were_not_measured_is_null(report: dict) -> None:
    ratios = report["ratios"]
    assert {name for name in ratios if ratios[name] is not None} == {
        "idle_tax",
        "cold_over_warm_ttft",
    }
    assert ratios["idle_tax"] > 0


def test_the_phases_of_a_profile_are_the_whole_step(report: dict) -> None:
    profile = report["profile"]
    kinds = {(row["case"], row["num_requests"]) for row in profile}
    assert kinds == {(case, size) for case in ("distinct", "base") for size in (2, 17)}
    for row in profile:
        assert tuple(row["phases_ms"]) == PHASES
        assert all(value > 0 for value in row["phases_ms"].values())
        assert row["step_ms"] == pytest.approx(sum(row["phases_ms"].values()))
        assert row["cost"] > 0
    lora_ms = {(row["case"], row["num_requests"]): row["phases_ms"]["lora"] for row in profile}
    assert lora_ms["distinct", 17] > lora_ms["base", 17]


def test_out_holds_the_table_as_markdown_and_a_chart(printed: list[str], out: Path) -> None:
    assert printed
    page = (out / "engine.md").read_text()
    assert "![Throughput and TTFT](engine.png)" in page
    columns = "distinct | one adapter | base | base, LoRA off | PEFT, distinct | PEFT, base |"
    assert f"| requests | {columns}" in page
    assert (out / "engine.png").read_bytes().startswith(b"\x89PNG")


def test_floors_ranks_and_scale_are_measured_where_they_are_asked_for(
    model: Path, data_dir: Path, tmp_path: Path
) -> None:
    tiny = ("--requests", "1", "--new-tokens", "2", "--prompt-tokens", "2", "--repeats", "1")
    more = ("--floors", "--ranks", "--scale", "--registered", "40", "--out", str(tmp_path))
    result = invoke("--model", str(model), "--data-dir", str(data_dir), "--json", *tiny, *more)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    ratios = report["ratios"]
    for name in ("step_over_floor_16", "lora_extra_over_floor_16", "prefill_lora_over_base_16"):
        assert ratios[name] is not None
    assert ratios["step_over_floor_16"] > 0
    assert ratios["r128_beside_r8"] is not None
    assert ratios["scale_2000_over_5"] is None  # of 40, which `scale` has
    assert report["floors_ms"].keys() == {"step", "lora"}
    assert report["ranks"]["rank_sums"] == [128, 160, 224, 248, 352, 448, 480, 600]
    assert len(report["ranks"]["step_ms"]) == 8
    assert report["ranks"]["r_squared"] <= 1
    scale = report["scale"]
    assert scale["num_registered"] == 40
    assert scale["over_5"] > 0
    assert scale["on_device"] <= 32 < scale["num_loads"]
    rates = {row["num_registered"]: row for row in report["rows"] if row["case"] == "registered"}
    assert rates.keys() == {5, 40}
    page = (tmp_path / "engine.md").read_text()
    for title in ("## Floors", "## Steps by Σ rank", "## Registered adapters"):
        assert title in page


def test_without_json_it_prints_tables(model: Path, data_dir: Path) -> None:
    tiny = ("--requests", "1", "--new-tokens", "2", "--prompt-tokens", "2", "--repeats", "1")
    result = invoke("--model", str(model), "--data-dir", str(data_dir), *tiny)
    assert result.exit_code == 0, result.output
    assert "REQUESTS  DISTINCT" in result.stdout
    assert "PEFT" not in result.stdout


def test_lora_off_is_the_plain_model_over_the_same_weights(model: Path) -> None:
    loaded = load_model(ModelConfig(model, "tiny", "cpu", "float32"))
    off = without_lora(loaded)
    ModelRunner(loaded, 16, 16)
    ModelRunner(off, 16, 16)
    mine, theirs = dict(loaded.network.named_parameters()), dict(off.network.named_parameters())
    assert theirs
    assert all(mine[name] is weight for name, weight in theirs.items())
    for path in loaded.shapes.linears:
        bare, layer = off.network.get_submodule(path), loaded.network.get_submodule(path)
        assert isinstance(bare, LoraLinear)
        assert isinstance(layer, LoraLinear)
        assert bare.group.dense is layer.group.dense
        assert layer.group.updates is loaded.lora is not bare.group.updates


def test_a_random_llama_passes_the_gate(tmp_path: Path) -> None:
    shape = LlamaShape(48, 2, 3, 1, 64, 100, 128)
    write_random_llama(tmp_path / "random", shape, seed=0)
    loaded = load_model(ModelConfig(tmp_path / "random", "random", "cpu", "bfloat16"))
    assert (loaded.vocab_size, len(loaded.layers), loaded.max_model_len) == (100, 2, 128)


@pytest.mark.parametrize("requests", ["", "0", "1,x", "257", "8,8"])
def test_sizes_that_are_none_are_refused(requests: str) -> None:
    result = invoke("--requests", requests)
    assert result.exit_code == 2
    assert "--requests" in result.stderr


@pytest.mark.parametrize(
    ("option", "value"),
    [("--dtype", "int3"), ("--new-tokens", "1"), ("--prompt-tokens", "0"), ("--repeats", "0")],
)
def test_an_option_out_of_range_is_refused_by_name(option: str, value: str) -> None:
    result = invoke(option, value)
    assert result.exit_code == 2
    assert option in result.stderr


def test_a_number_of_registered_adapters_that_nothing_would_use_is_refused() -> None:
    result = invoke("--registered", "500")
    assert result.exit_code == 2
    assert "--registered" in result.stderr
    assert "--scale" in result.stderr


def test_more_threads_than_cores_are_refused() -> None:
    result = CliRunner().invoke(app, ["engine", "--threads", "4096"])
    assert result.exit_code == 1
    assert "--threads is 4096; this process may run on" in result.stderr


def test_processor_time_of_several_threads_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    result = invoke("--model", str(model), "--processor-time")
    assert result.exit_code == 1
    assert "add --threads 1" in result.stderr


def test_requests_longer_than_the_model_holds_are_refused(model: Path) -> None:
    result = invoke("--model", str(model), "--prompt-tokens", "250", "--new-tokens", "7")
    assert result.exit_code == 1
    assert "are 257 together" in result.stderr
    assert "at most 256" in result.stderr


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    result = invoke("--model", str(tmp_path / "none"))
    assert result.exit_code == 1
    assert "there is no folder" in result.stderr


@pytest.mark.parametrize(
    ("package", "remedy"),
    [("peft", "leave it out with --no-peft"), ("matplotlib", "pip install 'loraplex[bench]'")],
)
def test_a_package_that_is_missing_is_named_before_anything_runs(
    package: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    result = CliRunner().invoke(app, ["engine", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert remedy in result.stderr


def test_a_processor_whose_name_says_little_is_told_by_family_and_model(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor : 0\ncpu family : 25\nmodel : 17\nmodel name : AMD EPYC\n\nprocessor : 1\n"
    )
    assert cpu_name(cpuinfo) == "AMD EPYC (cpu family 25, model 17)"
