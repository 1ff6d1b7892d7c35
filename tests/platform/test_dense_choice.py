"""Who computes dense layers is chosen once for a model on a machine."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from loraplex.kernels.linear import Packer, TorchPacker
from loraplex.platform import dense_choice
from loraplex.platform.dense_choice import KeptChoice

WEIGHTS = [torch.ones(4, 8), torch.ones(8, 4)]


def packer(name: str) -> Packer:
    named = TorchPacker()
    named.name = name
    return named


PACKERS = (packer("ours"), packer("theirs"))


class Chooser:
    """Takes the last, and counts."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, packers: Sequence[Packer], weights: Sequence[Tensor]) -> Packer:
        self.asked += 1
        return packers[-1]


def first(packers: Sequence[Packer], weights: Sequence[Tensor]) -> Packer:
    return packers[0]


@pytest.fixture
def chooser() -> Chooser:
    return Chooser()


def test_what_was_chosen_is_kept_for_the_next_start_and_for_other_workers(
    tmp_path: Path, chooser: Chooser
) -> None:
    assert KeptChoice(tmp_path / "kernels", chooser)(PACKERS, WEIGHTS) is PACKERS[1]
    assert KeptChoice(tmp_path / "kernels", first)(PACKERS, WEIGHTS) is PACKERS[1]
    assert chooser.asked == 1
    assert [path.suffix for path in (tmp_path / "kernels").iterdir()] == [".json"]


def test_one_alone_or_nothing_to_compute_is_neither_asked_for_nor_kept(
    tmp_path: Path, chooser: Chooser
) -> None:
    assert KeptChoice(tmp_path, chooser)(PACKERS[:1], WEIGHTS) is PACKERS[0]
    assert KeptChoice(tmp_path, chooser)(PACKERS, []) is PACKERS[0]
    assert (chooser.asked, list(tmp_path.iterdir())) == (0, [])


def test_other_weights_contenders_threads_or_versions_are_measured_for_themselves(
    tmp_path: Path, chooser: Chooser, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = KeptChoice(tmp_path, chooser)
    choose(PACKERS, WEIGHTS)
    choose(PACKERS, WEIGHTS[:1])
    choose(PACKERS, [weight.bfloat16() for weight in WEIGHTS])
    choose((*PACKERS, packer("another")), WEIGHTS)
    monkeypatch.setattr(dense_choice, "cpu_name", lambda: "another processor")
    choose(PACKERS, WEIGHTS)
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    choose(PACKERS, WEIGHTS)
    monkeypatch.setattr(torch, "__version__", "0.0")
    choose(PACKERS, WEIGHTS)
    (tmp_path / "linear.cpp").write_text("other sources")
    monkeypatch.setattr(dense_choice, "_SOURCES", tmp_path)
    choose(PACKERS, WEIGHTS)
    assert chooser.asked == 8


def test_of_two_workers_that_start_at_once_the_first_decides_for_both(tmp_path: Path) -> None:
    def overtaken(packers: Sequence[Packer], weights: Sequence[Tensor]) -> Packer:
        KeptChoice(tmp_path, first)(packers, weights)
        return packers[1]

    assert KeptChoice(tmp_path, overtaken)(PACKERS, WEIGHTS) is PACKERS[0]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"subject": "another", "chosen": "ours"}'])
def test_a_file_that_says_nothing_is_replaced(tmp_path: Path, chooser: Chooser, text: str) -> None:
    choose = KeptChoice(tmp_path, chooser)
    choose(PACKERS, WEIGHTS)
    (kept,) = tmp_path.iterdir()
    kept.write_text(text)
    choose(PACKERS, WEIGHTS)
    assert choose(PACKERS, WEIGHTS) is PACKERS[1]
    assert chooser.asked == 2


def test_where_nothing_can_be_kept_it_is_chosen_all_the_same(
    tmp_path: Path, chooser: Chooser, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    assert KeptChoice(tmp_path / "file", chooser)(PACKERS, WEIGHTS) is PACKERS[1]
    assert "is not kept" in caplog.text
