"""Metrics tell of processes that assist."""

import os
import signal

import torch
from prometheus_client import CollectorRegistry
from tests.engine.assist.made import READY_S, assisting, make

from loraplex.engine.assist.metrics import AssistCollector
from loraplex.engine.assist.watch import Watch


def told(watch: Watch | None) -> dict[str, float | None]:
    registry = CollectorRegistry()
    registry.register(AssistCollector(watch))
    states = ("ready", "starting")
    found = {
        s: registry.get_sample_value("loraplex_assist_processes", {"state": s}) for s in states
    }
    causes = ("died", "late")
    lost = {
        c: registry.get_sample_value("loraplex_assist_lost_total", {"cause": c}) for c in causes
    }
    return {**found, **lost, "busy": registry.get_sample_value("loraplex_assist_seconds_total")}


def test_a_worker_without_processes_that_assist_says_so() -> None:
    assert told(None) == dict.fromkeys(("ready", "starting", "died", "late", "busy"), 0.0)


def test_processes_are_counted_by_state_their_ends_by_cause_and_their_work_goes_on_counting() -> (
    None
):
    with assisting({"q": (48, 40)}, 2, min_backoff_s=600.0) as (assist, watch):
        assert told(watch) == {"ready": 2, "starting": 0, "died": 0, "late": 0, "busy": 0.0}
        y = torch.zeros(64, 48)
        assist.ask(make({"q": (48, 40, 4)}), ["q"], torch.ones(64, 40)).add_to(y)
        busy = told(watch)["busy"]
        assert busy
        os.kill(watch.ready[0].pid, signal.SIGKILL)
        assert watch.wait(lambda: watch.num_lost["died"] == 1 and len(watch.ready) == 1, READY_S)
        assert told(watch) == {"ready": 1, "starting": 1, "died": 1, "late": 0, "busy": busy}
