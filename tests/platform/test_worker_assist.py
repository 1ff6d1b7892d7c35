"""How many processes assist a worker, where they run, and what is refused."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from loraplex.engine.errors import TooFewCores
from loraplex.engine.model import LoadedModel
from loraplex.platform import worker_assist
from loraplex.platform.settings import Settings
from loraplex.platform.worker_assist import num_assistants, num_threads, start_assist

MODEL = cast(
    "LoadedModel",
    SimpleNamespace(config=SimpleNamespace(device="cpu"), shapes=SimpleNamespace(linears={})),
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path)


def with_cores(monkeypatch: pytest.MonkeyPatch, num: int) -> None:
    monkeypatch.setattr(worker_assist, "available_cores", lambda: num)


@pytest.mark.parametrize(
    ("cores", "device", "changed", "num"),
    [
        (64, "cuda", {}, 8),
        (12, "cuda", {}, 3),
        (2, "cuda", {}, 1),
        (1, "cuda", {}, 0),
        (64, "cpu", {}, 0),
        (8, "cpu", {"adapter_copy_bytes_per_s": 1_000_000}, 2),
        (64, "cpu", {"assist_processes": 3}, 3),
        (64, "cuda", {"assist_processes": 0}, 0),
    ],
)
def test_the_default_is_a_share_of_the_cores_where_copies_are_slow(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    device: str,
    changed: dict[str, Any],
    num: int,
) -> None:
    with_cores(monkeypatch, cores)
    assert num_assistants(settings.model_copy(update=changed), device) == num


@pytest.mark.parametrize(
    ("cores", "device", "num", "threads"),
    [(8, "cpu", 0, 7), (8, "cpu", 1, 7), (8, "cpu", 3, 5), (2, "cpu", 2, 1), (8, "cuda", 3, 7)],
)
def test_on_a_cpu_the_worker_s_own_threads_leave_them_their_cores(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    device: str,
    num: int,
    threads: int,
) -> None:
    with_cores(monkeypatch, cores)
    assert num_threads(settings.model_copy(update={"assist_processes": num}), device) == threads


def test_a_worker_without_them_starts_none(settings: Settings) -> None:
    assert start_assist(settings.model_copy(update={"assist_processes": 0}), MODEL) is None


def test_they_are_there_when_the_worker_has_started_and_on_the_highest_core(
    settings: Settings,
) -> None:
    assist = start_assist(settings.model_copy(update={"assist_processes": 1}), MODEL)
    assert assist is not None
    try:
        assert assist.watch.wait_ready(60)
        (assistant,) = assist.watch.ready
        assert os.sched_getaffinity(assistant.pid) == {max(os.sched_getaffinity(0))}
    finally:
        assist.close()


@pytest.mark.parametrize("num_cores", [1, 2])
def test_as_many_of_them_as_cores_are_refused_with_the_remedy(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, num_cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(num_cores)))
    refused = rf"LORAPLEX_ASSIST_PROCESSES={num_cores},.*set it to {num_cores - 1} or less"
    with pytest.raises(TooFewCores, match=refused):
        start_assist(settings.model_copy(update={"assist_processes": num_cores}), MODEL)
