"""Peers of the engine's benchmark: the protocol, by a stand-in that speaks it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import Result
from tests import tiny_models
from typer.testing import CliRunner

from loraplex.platform.bench import peer as peer_module
from loraplex.platform.bench.contenders import PEER_SECONDS
from loraplex.platform.bench.errors import BenchRefused
from loraplex.platform.bench.peer import PeerChoice
from loraplex.platform.cli.bench import app

STAND_IN = '''#!{python}
"""Takes the place of a Python that has a peer: repeats each request's last token."""
import json, sys
if sys.argv[1] == "-c":
    sys.exit({missing})
start = json.loads(sys.stdin.readline())
if {hangs}:
    sys.stdin.read()
log = open({log!r}, "a", buffering=1)
log.write(json.dumps({{"peer": sys.argv[2]}} | start) + "\\n")
print(json.dumps({{"versions": "0.stand-in"}}), flush=True)
for line in sys.stdin:
    batch = json.loads(line)
    log.write(json.dumps(batch | {{"has_adapters": bool(start["adapters"])}}) + "\\n")
    if {dies}:
        sys.exit(3)
    tokens = [[prompt[-1]] * batch["new_tokens"] for prompt in batch["prompts"]]
    is_lora = batch["adapters"][0] is not None
    done = {{"token_ids": tokens, "texts": None, "first_s": {slow_s} if is_lora else 0.5}}
    done |= {{"decode_s": 2.0, "num_decoded": len(tokens) * (batch["new_tokens"] - 1)}}
    print(json.dumps(done), flush=True)
'''


def stand_in(
    folder: Path, *, missing: int = 0, dies: bool = False, hangs: bool = False, slow_s: float = 0.5
) -> tuple[Path, Path]:
    """Write one; return it and the log of what it was told."""
    path, log = folder / "python", folder / "log"
    text = STAND_IN.format(
        python=sys.executable,
        missing=missing,
        log=str(log),
        dies=dies,
        hangs=hangs,
        slow_s=slow_s,
    )
    path.write_text(text)
    path.chmod(0o755)
    return path, log


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save_model(tmp_path_factory.mktemp("tiny"), tiny_models.llama_config())


def invoke(model: Path, tmp_path: Path, *options: str) -> Result:
    tiny = ("--requests", "2,16", "--new-tokens", "3", "--prompt-tokens", "4", "--repeats", "2")
    where = ("--model", str(model), "--data-dir", str(tmp_path / "data"))
    threads = ("--threads", str(torch.get_num_threads()))
    return CliRunner().invoke(
        app, ["engine", "--no-peft", "--json", *tiny, *where, *threads, *options]
    )


def test_peers_run_the_same_requests_on_the_same_files_in_turns(
    model: Path, tmp_path: Path
) -> None:
    python, log = stand_in(tmp_path)
    result = invoke(
        model, tmp_path, "--peer", "vllm", "--peer", "mistralrs", "--peer-python", str(python)
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["run"]["peers"] == {"vllm": "0.stand-in", "mistralrs": "0.stand-in"}
    measured = {
        (row["engine"], row["metric"], row["case"], row["num_requests"]): row["median"]
        for row in report["rows"]
        if row["engine"] in ("vllm", "mistralrs")
    }
    assert len(measured) == 2 * 2 * 2 * 2  # peers, metrics, cases, sizes
    assert measured["vllm", "decode_tokens_per_s", "distinct", 16] == 16  # 16 × 2 tokens in 2 s
    assert measured["mistralrs", "prefill_ms", "base", 2] == 500
    ratios = report["ratios"]
    for name in ("decode_over_vllm_16", "decode_over_mistralrs_16", "base_over_vllm_base_16"):
        assert ratios[name] > 0
    assert 0 <= report["run"]["tokens_equal"]["vllm"] < 1
    told = [json.loads(line) for line in log.read_text().splitlines()]
    starts = [each for each in told if "peer" in each]
    assert [(each["peer"], len(each["adapters"])) for each in starts] == [
        ("mistralrs", 16),
        ("vllm", 16),
        ("vllm", 0),  # the base model alone
    ]
    assert all(each["model"] == str(model) and each["threads"] >= 1 for each in starts)
    assert all((Path(folder)).name for each in starts for folder in each["adapters"])
    batches = [each for each in told if "prompts" in each]
    full = [each for each in batches if each["new_tokens"] == 3]
    assert {len(prompt) for each in full for prompt in each["prompts"]} == {4}
    # Both peers got each prompt, on adapters and on the base model.
    assert len(full) == 2 * 2 * 2 * 2


def test_a_case_that_takes_a_peer_too_long_is_not_repeated(model: Path, tmp_path: Path) -> None:
    python, log = stand_in(tmp_path, slow_s=PEER_SECONDS + 1)
    result = invoke(model, tmp_path, "--peer", "vllm", "--peer-python", f"vllm={python}")
    assert result.exit_code == 0, result.output
    repeats = {
        row["case"]: row["repeats"]
        for row in json.loads(result.stdout)["rows"]
        if row["engine"] == "vllm"
    }
    assert repeats == {"distinct": 1, "base": 2}
    told = [json.loads(line) for line in log.read_text().splitlines()]
    on_adapters = [e for e in told if e.get("new_tokens") == 3 and e["has_adapters"]]
    assert len(on_adapters) == 2  # sizes


def test_a_peer_that_is_not_installed_is_refused_with_what_helps(
    model: Path, tmp_path: Path
) -> None:
    python, _ = stand_in(tmp_path, missing=1)
    result = invoke(model, tmp_path, "--peer", "vllm", "--peer-python", str(python))
    assert result.exit_code == 1
    assert f"vllm, to which the engine is compared, is not installed in {python}" in result.stderr
    assert "--peer-python vllm=PATH" in result.stderr


def test_a_python_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchRefused, match="No such file"):
        PeerChoice("vllm", str(tmp_path / "none")).require()


def test_a_peer_that_dies_ends_the_run_with_its_name(model: Path, tmp_path: Path) -> None:
    python, _ = stand_in(tmp_path, dies=True)
    result = invoke(model, tmp_path, "--peer", "mistralrs", "--peer-python", str(python))
    assert result.exit_code == 1
    assert "the mistralrs process ended" in result.stderr


def test_a_peer_that_hangs_ends_the_run_with_its_name(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_module, "ANSWER_LIMIT_S", 0.01)
    python, _ = stand_in(tmp_path, hangs=True)
    result = invoke(model, tmp_path, "--peer", "vllm", "--peer-python", str(python))
    assert result.exit_code == 1
    assert "the vllm process gave no answer in 0.01 s; ask for less" in result.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--peer", "peft"), "--peer peft and --no-peft contradict each other"),
        (("--peer", "vllm", "--peer-python", "mistralrs=/p"), "names mistralrs, which --peer does"),
        (("--peer-python", "vllm=/p"), "there is no peer"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: tuple[str, ...], reason: str, model: Path, tmp_path: Path
) -> None:
    result = invoke(model, tmp_path, *options)
    assert result.exit_code == 1
    assert reason in result.stderr


def test_an_engine_that_nobody_knows_is_no_peer(model: Path, tmp_path: Path) -> None:
    result = invoke(model, tmp_path, "--peer", "another")
    assert result.exit_code == 2
    assert "--peer" in result.stderr


def test_what_runs_in_a_peers_python_needs_nothing_of_ours(tmp_path: Path) -> None:
    """All of it compiles in isolation, and the loop answers with a module that stands beside it."""
    scripts = Path(peer_module.__file__).with_name("peers")
    for script in scripts.glob("*.py"):
        (tmp_path / script.name).write_text(script.read_text())
        assert "loraplex" not in script.read_text()
    (tmp_path / "echo_peer.py").write_text(
        "import os\n"
        "class Echo:\n"
        "    versions = os.environ['OMP_WAIT_POLICY']\n"
        "    def run(self, batch):\n"
        "        print('noise')\n"
        "        return {'token_ids': batch['prompts']}\n"
        "def load(start, clock):\n"
        "    return Echo()\n"
    )
    done = subprocess.run(
        [sys.executable, str(tmp_path / "peer_process.py"), "echo"],
        input='{"by_processor_time": false}\n{"prompts": [[1, 2]]}\n',
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"versions": "PASSIVE"},
        {"token_ids": [[1, 2]]},
    ]
    assert "noise" in done.stderr
