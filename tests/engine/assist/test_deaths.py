"""Processes that assist die, hang and come back, and nobody is given what is not the answer."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from select import POLLIN, poll

import pytest
import torch
from tests.engine.assist.made import READY_S, assisting, expected, make

from loraplex.engine.assist.host_assist import HostAssist
from loraplex.engine.assist.process import MAX_ADAPTERS
from loraplex.engine.assist.watch import Watch
from loraplex.engine.assist_port import AssistLost

LINEARS = {"q": (48, 40)}
SHAPES = {"q": (48, 40, 4)}
NUM_DEATHS = 24
ORPHANS = """
import signal, sys, os
from loraplex.engine.assist.watch import Watch
core = max(os.sched_getaffinity(0))
watch = Watch([core, core])
assert watch.wait_ready(60)
print(*(assistant.pid for assistant in watch.ready), flush=True)
signal.pause()
"""


def assert_answers(assist: HostAssist, num_rows: int = 40) -> None:
    adapter, x = make(SHAPES), torch.randn(num_rows, 40)
    y = torch.zeros(num_rows, 48)
    assist.ask(adapter, ["q"], x).add_to(y)
    torch.testing.assert_close(y.double(), expected(adapter, "q", x), rtol=1e-5, atol=1e-5)


def stopped(watch: Watch) -> int:
    """Stop the first process, and wait until it is."""
    pid = watch.ready[0].pid
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    return pid


def assert_lost(assist: HostAssist, kill: int | None) -> None:
    """One question, of which the first process has rows and does not answer."""
    y = torch.randn(40, 48)
    before = y.clone()
    asked = assist.ask(make(SHAPES), ["q"], torch.randn(40, 40))
    if kill is not None:
        os.kill(kill, signal.SIGKILL)
    with pytest.raises(AssistLost):
        asked.add_to(y)
    assert torch.equal(y, before)


@pytest.mark.parametrize("num", [1, 2])
def test_a_process_that_is_killed_when_it_was_asked_leaves_the_output_and_comes_back(
    num: int,
) -> None:
    with assisting(LINEARS, num) as (assist, watch):
        assert_lost(assist, kill=stopped(watch))
        assert watch.wait_ready(READY_S)
        assert watch.num_lost == {"died": 1, "late": 0}
        assert_answers(assist)


def test_a_process_that_hangs_is_late_is_killed_and_comes_back() -> None:
    with assisting(LINEARS, 1, min_patience_s=0.05) as (assist, watch):
        pid = stopped(watch)
        assert_lost(assist, kill=None)
        assert watch.wait_ready(READY_S)
        assert watch.num_lost == {"died": 0, "late": 1}
        assert watch.ready[0].pid != pid
        assert_answers(assist)


def test_a_process_that_dies_while_nobody_asks_comes_back() -> None:
    with assisting(LINEARS, 1) as (assist, watch):
        os.kill(watch.ready[0].pid, signal.SIGKILL)
        assert watch.wait(lambda: watch.num_lost["died"] == 1, READY_S)
        assert watch.wait_ready(READY_S)
        assert_answers(assist)


def test_rows_are_divided_among_those_that_are_left_and_with_none_it_is_told_at_once() -> None:
    with assisting(LINEARS, 2, min_backoff_s=600.0) as (assist, watch):
        for num_left in (1, 0):
            os.kill(watch.ready[0].pid, signal.SIGKILL)
            assert watch.wait(lambda left=num_left: len(watch.ready) == left, READY_S)
            assert assist.num_ready == num_left
            if num_left:
                assert_answers(assist)
        with pytest.raises(AssistLost, match="no process"):
            assist.ask(make(SHAPES), ["q"], torch.ones(1, 40))


def test_a_death_that_is_first_seen_when_a_question_is_sent_costs_that_question_nothing() -> None:
    with assisting(LINEARS, 2) as (assist, watch):
        dead = watch.ready[0]
        dead._socket.shutdown(socket.SHUT_RDWR)
        assert_answers(assist)
        assert dead.cause == "died"


def test_many_deaths_leave_no_descriptor_and_no_process() -> None:
    adapter, others = make(SHAPES), children()
    with assisting(LINEARS, 1) as (assist, watch):
        open_before = 0
        for num_deaths in range(1, NUM_DEATHS + 1):
            watch._places[0].backoff_s = 0.001  # it grows from death to death
            asked = assist.ask(adapter, ["q"], torch.ones(40, 40))
            os.kill(watch.ready[0].pid, signal.SIGKILL)
            assert watch.wait(lambda n=num_deaths: watch.num_lost["died"] == n, READY_S)
            assert watch.wait_ready(READY_S)
            del asked
            if num_deaths == 2:
                open_before = num_open()
        assert num_open() == open_before
        assert set(children()) - set(others) == {watch.ready[0].pid}
    assert set(children()) <= set(others)


def num_open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def children() -> list[int]:
    """Of this process, dead ones that nobody waited for among them."""
    threads = Path("/proc/self/task").iterdir()
    return [int(p) for thread in threads for p in (thread / "children").read_text().split()]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_they_end_when_the_worker_is_killed(*, is_stopped: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        pids = [int(pid) for pid in worker.stdout.readline().split()]
        ended = [os.pidfd_open(pid) for pid in pids]
        if is_stopped:
            os.kill(pids[0], signal.SIGSTOP)
        worker.kill()
        for file in ended:
            waiting = poll()
            waiting.register(file, POLLIN)
            assert waiting.poll(READY_S * 1e3)
            os.close(file)
    assert len(pids) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_for_the_worker_do_not_end_them(number: signal.Signals) -> None:
    with assisting(LINEARS, 1) as (assist, watch):
        pid = watch.ready[0].pid
        assert os.getsid(pid) != os.getsid(0)
        os.kill(pid, number)
        assert_answers(assist)
        assert watch.ready[0].pid == pid


def test_each_is_bound_to_its_core() -> None:
    with assisting(LINEARS, 2) as (_, watch):
        cores = sorted(os.sched_getaffinity(0))[::-1][:2]
        bound = [os.sched_getaffinity(assistant.pid) for assistant in watch.ready]
        assert bound == [{cores[0]}, {cores[-1]}]


def mapped(pid: int) -> int:
    """Files of adapters that a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:adapter")


def test_a_process_gives_up_an_adapter_that_has_left_the_host() -> None:
    with assisting(LINEARS, 1) as (assist, watch):
        adapter = make(SHAPES)
        assist.ask(adapter, ["q"], torch.ones(1, 40)).add_to(torch.zeros(1, 48))
        assert mapped(watch.ready[0].pid) == 1
        del adapter
        stays = make(SHAPES)
        for _ in range(10_000):  # each answer says that what was sent before has been read
            assist.ask(stays, ["q"], torch.ones(1, 40)).add_to(torch.zeros(1, 48))
            if mapped(watch.ready[0].pid) == 1:
                return
        pytest.fail("it still has it")


def test_a_process_has_mapped_only_so_many_adapters() -> None:
    with assisting(LINEARS, 1) as (assist, watch):
        made = [make(SHAPES, seed=seed) for seed in range(MAX_ADAPTERS + 5)]
        for adapter in [*made, made[0]]:
            x, y = torch.randn(2, 40), torch.zeros(2, 48)
            assist.ask(adapter, ["q"], x).add_to(y)
            torch.testing.assert_close(y.double(), expected(adapter, "q", x), rtol=1e-5, atol=1e-5)
        assert mapped(watch.ready[0].pid) == MAX_ADAPTERS
