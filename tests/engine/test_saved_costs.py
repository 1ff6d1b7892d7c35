"""What was learned of step times, as a file."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.test_cost import random_step, taught, with_one_edge

from loraplex.engine.cost import CostModel, Subject
from loraplex.engine.errors import CostModelInvalid
from loraplex.engine.saved_costs import CostFile
from loraplex.engine.simulation.devices import read_device

SAVED = taught(with_one_edge, 300).to_json()
SUBJECT = Subject("model", "device")


def test_what_was_kept_is_read_again(tmp_path: Path) -> None:
    file = CostFile(tmp_path / "costs", SUBJECT)
    assert file.read() is None
    file.write(SAVED)
    model, step = file.read(), random_step(np.random.default_rng(1))
    assert model is not None
    assert model.predict_ms(step) == CostModel.from_json(SAVED).predict_ms(step)
    assert [path.suffix for path in file.folder.iterdir()] == [".json"]


def test_writes_at_the_same_time_leave_a_whole_file(tmp_path: Path) -> None:
    file = CostFile(tmp_path, SUBJECT)
    partials = set()
    replace = Path.replace

    def note(path: Path, target: Path) -> Path:
        partials.add(path)
        return replace(path, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", note)
        file.write(SAVED)
        file.write(SAVED)
    assert len(partials) == 2, "two that write at once would write into one file"
    assert file.read() is not None


def test_each_model_and_each_device_has_a_file_of_its_own(tmp_path: Path) -> None:
    subjects = [Subject("a", "b"), Subject("a", "c"), Subject("d", "b"), Subject("ab", "")]
    assert len({CostFile(tmp_path, subject).path for subject in subjects}) == 4


def test_a_file_of_another_model_is_not_used_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = CostFile(tmp_path, Subject("other", "device"))
    file.write(SAVED)
    assert file.read() is None
    assert "is of model on device" in caplog.text


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{}", SAVED[:-40]])
def test_a_broken_file_is_not_used_and_the_log_says_so(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = CostFile(tmp_path, SUBJECT)
    file.path.write_bytes(content)
    assert file.read() is None
    assert str(file.path) in caplog.text


def test_a_folder_that_cannot_be_written_is_told_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "costs").write_text("in the way")
    CostFile(tmp_path / "costs", SUBJECT).write(SAVED)
    assert "is not kept" in caplog.text


numbers = st.one_of(st.floats(), st.just(1e308), st.just(-1e308), st.integers(-(10**6), 10**6))


@settings(deadline=None)
@given(
    field=st.sampled_from(["gram", "moment", "left_over", "left_over_weight", "mean_chunks"]),
    at=st.integers(0, 10**4),
    number=numbers,
)
def test_whatever_number_is_in_a_file_it_predicts_times_or_is_refused(
    field: str, at: int, number: float
) -> None:
    saved = json.loads(SAVED)
    value = saved[field]
    if isinstance(value, float):
        saved[field] = number
    else:
        row = value[at % len(value)] if isinstance(value[0], list) else value
        row[at % len(row)] = number
    try:
        model = CostModel.from_json(json.dumps(saved).encode())
    except CostModelInvalid:
        return
    step = random_step(np.random.default_rng(at))
    assert 0 <= model.predict_ms(step) < float("inf")
    assert 0 <= model.request_ms(100, 0, 100.0) < float("inf")


def test_the_simulator_takes_the_file_as_a_device(tmp_path: Path) -> None:
    file = CostFile(tmp_path, SUBJECT)
    file.write(SAVED)
    device = read_device(str(file.path))
    step = random_step(np.random.default_rng(1))
    assert device.name == "model on device"
    assert device.times.step_ms(step) == CostModel.from_json(SAVED).predict_ms(step)
