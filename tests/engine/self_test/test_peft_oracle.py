"""The process that computes with PEFT: what goes wrong in it says nothing about an adapter."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engine.self_test.world import Options, running

from loraplex.engine.runner import ModelRunner
from loraplex.engine.self_test import peft_oracle
from loraplex.engine.self_test.peft_oracle import OracleUnavailable, PeftOracle, PeftSubject

SUBJECT = PeftSubject(Path("nowhere"), "float32", 1_000_000, threads=1)
REFUSES = 'import sys\nfor _ in sys.stdin: print(\'{"type":"failed","message":"no"}\', flush=True)'


def command(source: str) -> tuple[str, ...]:
    return (sys.executable, "-c", source)


@pytest.mark.parametrize(
    "source",
    [
        "raise SystemExit(3)",
        "import os; input(); os.kill(os.getpid(), 9)",
        "input(); print('hello', flush=True); input()",
        'input(); print(\'{"type":"checked"}\', flush=True); input()',
        REFUSES,
    ],
    ids=["cannot start", "killed within a check", "speaks nonsense", "says too little", "refuses"],
)
async def test_a_process_that_is_of_no_use_leaves_the_test_to_the_plain_computation(
    runner: ModelRunner, adapter: Path, tmp_path: Path, source: str
) -> None:
    options = Options(peft={"command": command(source)})
    async with running(runner, tmp_path, options) as world:
        report = await world.verify(adapter, may_use_peft=True)
    assert report.passed
    assert report.method == "reference"
    assert "PEFT could not be asked" in report.detail
    assert report.versions.keys() == {"torch"}


async def test_an_answer_that_does_not_come_is_not_waited_for() -> None:
    oracle = PeftOracle(SUBJECT, command=command("input(); input()"), timeout_s=0.5)
    with pytest.raises(OracleUnavailable, match=r"longer than 0\.5 s"):
        await oracle.judge(Path(), [])
    assert oracle.process is None


async def test_a_process_serves_one_check_after_the_other_and_ends_when_idle() -> None:
    oracle = PeftOracle(SUBJECT, command=command(REFUSES), idle_s=0.5)
    processes = []
    for _ in range(2):
        with pytest.raises(OracleUnavailable, match="no"):
            await oracle.judge(Path(), [])
        processes.append(oracle.process)
    first, second = processes
    assert first is second
    assert first is not None
    assert await first.wait() == -9
    with pytest.raises(OracleUnavailable, match="no"):
        await oracle.judge(Path(), [])
    assert oracle.process is not first
    await oracle.close()


async def test_no_process_is_started_where_memory_has_no_room_for_it() -> None:
    oracle = PeftOracle(SUBJECT, free_bytes=lambda: 2_000_000_000, command=command(REFUSES))
    with pytest.raises(OracleUnavailable, match="MiB"):
        await oracle.judge(Path(), [])
    assert oracle.process is None


async def test_no_process_is_started_without_peft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peft_oracle, "find_spec", lambda name: None)
    oracle = PeftOracle(SUBJECT, command=command(REFUSES))
    with pytest.raises(OracleUnavailable, match=r"loraplex\[worker\]"):
        await oracle.judge(Path(), [])
    assert oracle.process is None


def test_a_process_that_computes_for_too_long_ends_though_no_thread_of_it_can_run() -> None:
    source = (
        "import re\n"
        "from loraplex.engine.self_test.processor_time import bound_processor_time\n"
        "bound_processor_time(1)\n"
        "re.match('(a|a)*b', 'a' * 99)"
    )
    ended = subprocess.run(command(source), check=False)
    assert ended.returncode == -signal.SIGXCPU
