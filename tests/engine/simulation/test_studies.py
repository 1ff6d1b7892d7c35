"""The tables and pictures of the documentation, on loads of a few requests."""

from pathlib import Path

import pytest

from loraplex.engine.simulation.studies.__main__ import STUDIES, main

VTC = "arrival_s,client,input_tokens,output_tokens\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = (f"{i},{'abc'[i % 3]},{20 + i},{5 + i % 7}" for i in range(40))
    path = tmp_path / "trace.csv"
    path.write_text(VTC + "\n".join(rows) + "\n")
    return path


def test_a_study_prints_its_tables_and_draws_pictures_that_need_nothing_from_elsewhere(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pictures"
    main(["vtc", str(trace), "--seeds", "2", "--policies", "vtc,fair", "--out", str(out)])
    told = capsys.readouterr().out
    assert "| `fair` |" in told
    assert "shared evenly" in told
    picture = (out / "service-over-time.svg").read_text()
    assert "<svg" in picture
    assert 'href="http' not in picture


def test_the_same_study_makes_the_same_picture(trace: Path, tmp_path: Path) -> None:
    for name in "ab":
        main(["vtc", str(trace), "--policies", "fair", "--out", str(tmp_path / name)])
    first, second = ((tmp_path / name / "service-over-time.svg").read_bytes() for name in "ab")
    assert first == second


def test_what_cannot_be_studied_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"vtc: trace .*nowhere"):
        main(["vtc", str(tmp_path / "nowhere")])


@pytest.mark.parametrize(("study", "seeds"), [("tenants", "2"), ("caches", "5")])
def test_seeds_are_refused_where_they_mean_nothing(
    study: str, seeds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([study, "--seeds", seeds])
    assert f"--seeds {seeds}: {study} makes one run" in capsys.readouterr().err


def test_each_study_says_what_it_needs() -> None:
    assert all(study.__doc__ for study in STUDIES.values())
