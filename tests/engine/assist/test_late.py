"""A process that is late costs a step little, and again only after a while."""

import os
import signal
import subprocess
from pathlib import Path
from time import monotonic

import pytest
import torch
from tests.engine.assist.made import READY_S, assisting, expected, make

from loraplex.engine.assist import assistant as assistants
from loraplex.engine.assist.assistant import FORGIVEN_S, MIN_REST_S, Assistant
from loraplex.engine.assist.host_assist import (
    MAX_PATIENCE_S,
    MIN_PATIENCE_S,
    HostAssist,
)
from loraplex.engine.assist_port import AssistLost

LINEARS = {"q": (48, 40)}
SHAPES = {"q": (48, 40, 4)}
X = torch.ones(40, 40)


def assert_late(assist: HostAssist) -> None:
    with pytest.raises(AssistLost, match="late"):
        assist.ask(make(SHAPES), ["q"], X).add_to(torch.zeros(40, 48))


def assert_answers(assist: HostAssist) -> None:
    adapter, y = make(SHAPES), torch.zeros(40, 48)
    assist.ask(adapter, ["q"], X).add_to(y)
    torch.testing.assert_close(y.double(), expected(adapter, "q", X), rtol=1e-5, atol=1e-5)


def test_a_late_process_is_left_alone_for_a_while_and_asked_again_once_it_has_answered() -> None:
    with assisting(LINEARS, 1, min_patience_s=0.05, late_s=READY_S) as (assist, watch):
        (late,) = watch.ready
        signal.pidfd_send_signal(late.ended, signal.SIGSTOP)
        assert_late(assist)
        assert late.late_since_s is not None
        assert assist.num_ready == 0
        with pytest.raises(AssistLost, match="no process"):
            assist.ask(make(SHAPES), ["q"], X)
        signal.pidfd_send_signal(late.ended, signal.SIGCONT)
        assert watch.wait_ready(READY_S)
        assert watch.ready == [late]
        assert monotonic() >= late.rests_until_s
        assert watch.num_lost == {"died": 0, "late": 0}
        assist._min_patience_s = READY_S
        assert_answers(assist)


def test_others_are_asked_while_one_is_late() -> None:
    with assisting(LINEARS, 2, min_patience_s=0.05, late_s=READY_S) as (assist, watch):
        late, other = watch.ready
        signal.pidfd_send_signal(late.ended, signal.SIGSTOP)
        assert_late(assist)
        assert watch.ready == [other]
        assist._min_patience_s = READY_S
        assert_answers(assist)
        signal.pidfd_send_signal(late.ended, signal.SIGCONT)


def test_the_rest_of_one_that_is_late_again_is_twice_as_long_until_that_is_long_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(assistants, "monotonic", lambda: now)
    process = Assistant(max(os.sched_getaffinity(0)))
    rests = []
    for pause_s in (0.0, 1.0, 1.0, FORGIVEN_S + 5):
        now += pause_s
        process._rest()
        rests.append(process.rests_until_s - now)
    process.reap()
    assert rests == [MIN_REST_S, 2 * MIN_REST_S, 4 * MIN_REST_S, MIN_REST_S]


@pytest.mark.parametrize(("s_per_product", "most_s"), [(1e-9, 0.021), (1.0, MAX_PATIENCE_S)])
def test_a_step_waits_for_little_more_than_what_is_expected_and_never_for_long(
    s_per_product: float, most_s: float
) -> None:
    with assisting(LINEARS, 1, min_patience_s=MIN_PATIENCE_S) as (assist, _):
        assist._s_per_product = s_per_product
        asked = assist.ask(make(SHAPES), ["q"], X)
        assert asked._deadline_s <= monotonic() + most_s


def test_what_goes_wrong_in_a_round_of_the_watch_is_logged_and_does_not_end_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with assisting(LINEARS, 1) as (assist, watch):
        (assistant,) = watch.ready

        def fails(number: int) -> None:
            del assistant.forget  # type: ignore[method-assign]  # the class has it still
            raise RuntimeError("it went wrong")

        assistant.forget = fails  # type: ignore[method-assign]  # for one call
        watch.forget(7)
        os.kill(assistant.pid, signal.SIGKILL)
        assert watch.wait(lambda: watch.num_lost["died"] == 1, READY_S)
        assert watch.wait_ready(READY_S)
        assert_answers(assist)
    assert "it went wrong" in caplog.text


def test_a_process_that_cannot_be_watched_is_ended_and_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[int] = []

    def no_file(pid: int) -> int:
        started.append(pid)
        raise OSError("too many files")

    monkeypatch.setattr(os, "pidfd_open", no_file)
    with pytest.raises(OSError, match="too many files"):
        Assistant(max(os.sched_getaffinity(0)))
    assert not subprocess._active  # type: ignore[attr-defined]  # nobody is left to be waited for
    assert not Path(f"/proc/{started[0]}").exists()
