"""Passes on adapters that are on their way, with the help of processes that assist."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.engine.alone import RTOL
from tests.engine.architectures import ARCHITECTURES
from tests.engine.assist.made import READY_S, assisting
from tests.engine.cold_world import ColdWorld, chunk, everything, make_model, make_world, options_of

from loraplex.engine.assist.host_assist import HostAssist
from loraplex.engine.assist.watch import Watch
from loraplex.kernels.cpu_kernels import CpuKernels

Assisted = tuple[ColdWorld, HostAssist, Watch]


@pytest.fixture(params=["Llama", "GPT-2"])
def assisted(
    request: pytest.FixtureRequest,
    kernels: CpuKernels | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Assisted]:
    folder = tmp_path_factory.mktemp("world")
    model = make_model(folder, request.param, kernels)
    options = options_of(ARCHITECTURES[request.param])
    with assisting(model.shapes.linears, 2, min_backoff_s=600.0) as (assist, watch):
        world = make_world(folder, model, {"all": options}, assist)
        world.stored = replace(world.stored, shares=True)
        yield world, assist, watch
        world.clear()


def test_a_pass_of_which_no_layer_has_come_is_computed_from_the_hosts_copy(
    assisted: Assisted,
) -> None:
    world, _, watch = assisted
    own = chunk("own", "all", length=33)
    expected = world.resident_logits(own)
    copy = world.copy("all")
    output = world.step(everything(own, may_assist=True)).cold["own"]
    assert output.is_done
    assert (output.num_layers, output.num_host_layers) == (copy.num_layers, copy.num_layers)
    assert (world.runner.pass_logits["own"] - expected).abs().max() <= RTOL * expected.abs().max()
    assert watch.busy_s > 0


def test_a_pass_whose_processes_die_goes_on_where_it_is_when_layers_come(
    assisted: Assisted, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, assist, watch = assisted
    own = chunk("own", "all", length=33)
    expected = world.resident_logits(own)
    copy = world.copy("all")
    ask, num_asked = assist.ask, 0

    def ask_and_kill(*what: object) -> object:
        nonlocal num_asked
        asked = ask(*what)  # type: ignore[arg-type]  # handed on as it is
        num_asked += 1
        if num_asked == 3:
            for assistant in watch.ready:
                os.kill(assistant.pid, signal.SIGSTOP)
                os.kill(assistant.pid, signal.SIGKILL)
            assert watch.wait(lambda: watch.num_lost["died"] == 2, READY_S)
        return asked

    monkeypatch.setattr(assist, "ask", ask_and_kill)
    output = world.step(everything(own, may_assist=True)).cold["own"]
    assert output.is_done is False
    copy.give(copy.num_layers)
    output = world.step(everything(own, may_assist=True)).cold["own"]
    assert output.is_done
    assert (world.runner.pass_logits["own"] - expected).abs().max() <= RTOL * expected.abs().max()
    assert num_asked >= 3
