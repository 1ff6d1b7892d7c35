"""What was learned of step times, as a file."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.test_cost import random_step, taught, with_one_edge

from loraplex.engine.cost import CostModel, Subject
from loraplex.engine.cost_features import StepFeatures
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


def with_fields(**changes: object) -> bytes:
    return json.dumps(json.loads(SAVED) | changes).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"left_over": [-1e5] * 256},
        {"left_over": [1e6] * 256},
        {"left_over": [-30.0] + [0.0] * 255, "left_over_weight": [20.0] + [0.0] * 255},
        {"left_over": [0.0] * 255 + [1e308], "left_over_weight": [0.0] * 256},
        {"left_over": [0.0] * 256, "left_over_weight": [1e9] * 256},
        {"num_steps": -5},
        {"num_steps": 10**30},
        {"error_variance": 1e15},
        {"error_variance": -1.0},
        {"mean_chunks": 1e300},
    ],
)
def test_what_learning_cannot_have_led_to_is_refused(changes: dict[str, object]) -> None:
    assert CostModel.from_json(with_fields())
    with pytest.raises(CostModelInvalid):
        CostModel.from_json(with_fields(**changes))


def test_times_too_long_to_be_of_steps_are_refused() -> None:
    moment = (1e6 * np.array(json.loads(SAVED)["moment"])).tolist()
    with pytest.raises(CostModelInvalid, match="predict no time"):
        CostModel.from_json(with_fields(moment=moment))


def test_a_field_that_is_nested_deeper_than_can_be_read_is_refused() -> None:
    with pytest.raises(CostModelInvalid):
        CostModel.from_json(b'{"zzz":' + b"[" * 200_000)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=60), st.integers(1, 40))
def test_whatever_steps_took_what_was_learned_of_them_is_read_again(
    times_ms: list[float], num_tokens: int
) -> None:
    model = CostModel(SUBJECT)
    for ms in times_ms:
        model.observe(StepFeatures(num_tokens, 1, num_tokens - 1, 0.0, 0.0, 20), ms)
    model = CostModel.from_json(model.to_json())
    assert model.num_steps == len(times_ms)
    assert model.predict_ms(StepFeatures(num_tokens, 1, num_tokens - 1, 0.0, 0.0, 20)) >= 0


def test_the_simulator_takes_the_file_as_a_device(tmp_path: Path) -> None:
    file = CostFile(tmp_path, SUBJECT)
    file.write(SAVED)
    device = read_device(str(file.path))
    step = random_step(np.random.default_rng(1))
    assert device.name == "model on device"
    assert device.times.step_ms(step) == CostModel.from_json(SAVED).predict_ms(step)
