"""A worker's cost model over its starts, with a real model."""

import logging
import threading
from pathlib import Path

import pytest
import torch
from tests import tiny_models
from tests.engine import build

from loraplex.engine.config import ModelConfig, SchedulerConfig
from loraplex.engine.cost import CostModel
from loraplex.engine.errors import CostModelInvalid
from loraplex.engine.model import load_model
from loraplex.engine.runner import ModelRunner
from loraplex.engine.saved_costs import CostFile
from loraplex.platform.settings import Settings
from loraplex.platform.worker_costs import KeptCosts, prepare_costs, subject_of

CONFIG = build.config(
    num_blocks=40, max_step_tokens=32, max_running=8, max_model_len=100, vocab_size=320
)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    folder = tiny_models.save_model(tmp_path_factory.mktemp("model"), tiny_models.llama_config())
    return ModelRunner(load_model(ModelConfig(folder, "tiny", "cpu", "float32")), 40, 4)


def prepared(
    data_dir: Path,
    runner: ModelRunner,
    calibration_s: float = 30.0,
    config: SchedulerConfig = CONFIG,
) -> KeptCosts:
    settings = Settings(data_dir=data_dir, calibration_s=calibration_s)
    return prepare_costs(settings, runner, config, 1 << 30, lambda: False)


def test_a_worker_learns_before_its_first_traffic_and_knows_at_the_next_start(
    tmp_path: Path, runner: ModelRunner, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = prepared(tmp_path, runner)
    assert first.model.num_steps >= CONFIG.min_learned_steps
    assert first.model.errors().num_steps == first.model.num_alarms == 0, "no traffic, no errors"
    second = prepared(tmp_path, runner)
    assert second.model.num_steps == first.model.num_steps
    assert second.model.terms.constant_ms == first.model.terms.constant_ms
    assert [record.message.split(" steps")[0] for record in caplog.records][::2] == [
        "learning how long",
        f"step times are known from {first.model.num_steps}",
    ]


def test_a_calibration_that_was_too_short_goes_on_at_the_next_start(
    tmp_path: Path, runner: ModelRunner
) -> None:
    num_steps, settings = [], Settings(data_dir=tmp_path, calibration_s=30.0)
    for _ in range(2):
        asked = iter(range(7))
        kept = prepare_costs(settings, runner, CONFIG, 1 << 30, lambda at=asked: next(at) == 6)
        num_steps.append(kept.model.num_steps)
    assert num_steps == [6, 12]


def test_what_was_learned_from_traffic_is_kept_too(tmp_path: Path, runner: ModelRunner) -> None:
    kept = prepared(tmp_path, runner)
    before = kept.model.num_steps
    assert kept.due(kept.saved_s + 299) is None
    assert kept.due(kept.saved_s + 300) is not None
    kept.model.num_steps += 1000
    kept.close()
    assert prepared(tmp_path, runner).model.num_steps == before + 1000


def test_what_is_saved_at_the_end_is_written_after_what_was_due_before(
    tmp_path: Path, runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = prepared(tmp_path, runner, calibration_s=0)
    overtaken, written = threading.Event(), CostFile.write

    def slow_write(file: CostFile, saved: bytes) -> None:
        if saved == b"older":
            overtaken.wait(0.2)
        written(file, saved)
        overtaken.set()

    monkeypatch.setattr(CostFile, "write", slow_write)
    kept.write(b"older")
    kept.close()
    assert kept.file.read() is not None


def test_another_size_of_blocks_or_version_of_torch_is_another_subject(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    subjects = {subject_of(runner), subject_of(ModelRunner(runner.model, 40, 8))}
    monkeypatch.setattr(torch, "__version__", "0.0")
    assert len(subjects | {subject_of(runner)}) == 3


def test_without_calibration_it_starts_with_nothing(tmp_path: Path, runner: ModelRunner) -> None:
    assert prepared(tmp_path, runner, calibration_s=0).model.num_steps == 0
    assert not (tmp_path / "costs").exists()


def test_a_runner_that_cannot_do_it_does_not_keep_the_worker_from_starting(
    tmp_path: Path, runner: ModelRunner, caplog: pytest.LogCaptureFixture
) -> None:
    beyond = build.config(num_blocks=4000, max_step_tokens=32, max_model_len=100, vocab_size=10**6)
    assert prepared(tmp_path, runner, config=beyond).model.num_steps == 0
    assert "could not be measured" in caplog.text


def test_what_was_just_learned_and_is_no_cost_model_is_dropped_and_the_worker_starts(
    tmp_path: Path,
    runner: ModelRunner,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_data: bytes) -> CostModel:
        raise CostModelInvalid("its numbers are no cost model's")

    monkeypatch.setattr(CostModel, "from_json", refuse)
    assert prepared(tmp_path, runner).model.num_steps == 0
    assert "could not be measured" in caplog.text


def test_another_number_of_threads_is_another_device(runner: ModelRunner) -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = subject_of(runner)
        torch.set_num_threads(2)
        assert subject_of(runner) != one
    finally:
        torch.set_num_threads(threads)
