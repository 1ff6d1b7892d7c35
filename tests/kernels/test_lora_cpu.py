"""The compiled kernel of CPUs, against the reference."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests.kernels.lora_cases import (
    ALL_RANKS,
    ASSIGNMENTS,
    IN,
    OUT,
    ROWS,
    TOLERANCES,
    make_batch,
    make_segments,
    mixed_rank_batches,
)

from loraplex.kernels.lora import LoraSegment, add_lora
from loraplex.kernels.lora_cpu import CpuLora, CpuModuleSegments, CpuSegments, compile_lora
from loraplex.kernels.lora_reference import add_lora_reference
from loraplex.kernels.segments import TableRows, lora_table

DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> CpuLora:
    compiled = compile_lora(tmp_path_factory.mktemp("kernels"))
    assert compiled is not None, "the tests need a C++ compiler"
    return compiled


def located(
    kernel: CpuLora, segments: Sequence[LoraSegment], widths: tuple[int, int] = (IN, OUT)
) -> CpuModuleSegments:
    in_width, out_width = widths
    rows = []
    for start, end, a, b, scale in segments:
        pair = LoraSegment(start, end, a, b.T.contiguous().T, scale)
        table = lora_table(
            [pair],
            [(out_width, in_width)],
            dtype=a.dtype,
            device=a.device,
            b_is_transposed=True,
        )
        rows.append(TableRows(start, end, table))
    module = CpuSegments.of(rows, kernel).at(0)
    assert module is not None
    return module


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("assignment", ASSIGNMENTS)
@pytest.mark.parametrize("rows", ROWS)
def test_updates_equal_the_reference(
    kernel: CpuLora, rows: int, assignment: str, dtype: torch.dtype
) -> None:
    relative, absolute = TOLERANCES[dtype]
    torch.manual_seed(rows)
    for y, x, segments in mixed_rank_batches(ASSIGNMENTS[assignment](rows), dtype, ALL_RANKS):
        expected = add_lora_reference(y, x, segments)
        add_lora(y, x, located(kernel, segments))
        torch.testing.assert_close(y.double(), expected, rtol=relative, atol=absolute)


@pytest.mark.parametrize("widths", [(1, 1), (8, 7), (257, 519), (576, 1536)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_width_equals_the_reference(
    kernel: CpuLora, widths: tuple[int, int], dtype: torch.dtype
) -> None:
    relative, absolute = TOLERANCES[dtype]
    torch.manual_seed(7)
    y, x = make_batch(3, dtype, widths=widths)
    segments = [
        LoraSegment(
            row,
            row + 1,
            torch.randn(rank, widths[0]).to(dtype),
            (torch.randn(widths[1], rank) / rank).to(dtype),
            0.7,
        )
        for row, rank in enumerate((1, 5, 64))
    ]
    expected = add_lora_reference(y, x, segments)
    add_lora(y, x, located(kernel, segments, widths))
    torch.testing.assert_close(y.double(), expected, rtol=relative, atol=2 * absolute)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_has_the_same_bits_alone_and_in_a_batch_on_any_number_of_threads(
    kernel: CpuLora, dtype: torch.dtype
) -> None:
    torch.manual_seed(3)
    y, x = make_batch(7, dtype)
    segments = make_segments([0, 1, 1, 2, 2, 2, 3], 33, dtype)
    together, alone = y.clone(), y.clone()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    add_lora(together, x, located(kernel, segments))
    torch.set_num_threads(1)
    for segment in segments:
        for row in range(segment.start, segment.end):
            one = segment._replace(start=0, end=1)
            add_lora(alone[row : row + 1], x[row : row + 1], located(kernel, [one]))
    torch.set_num_threads(num_threads)
    assert torch.equal(together, alone)


def test_rows_outside_all_segments_keep_their_bits(kernel: CpuLora) -> None:
    y, x = make_batch(4, torch.bfloat16)
    before = y.clone()
    (segment,) = make_segments([0], 8, torch.bfloat16)
    add_lora(y, x, located(kernel, [segment._replace(start=2, end=3)]))
    assert torch.equal(y[[0, 1, 3]], before[[0, 1, 3]])
    assert not torch.equal(y[2], before[2])


def test_numbers_that_are_not_finite_stay_in_their_row(kernel: CpuLora) -> None:
    for dtype in DTYPES:
        y, x = make_batch(2, dtype)
        x[0, 3] = float("nan")
        add_lora(y, x, located(kernel, make_segments([0, 0], 7, dtype)))
        assert y[0].isnan().all()
        assert y[1].isfinite().all()


def test_without_a_compiler_there_is_no_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compile_lora(tmp_path) is None


FAILS = "{ echo no space left >&2; exit 1; }"


@pytest.mark.parametrize(
    "script", [f"#!/bin/sh\n{FAILS}\n", f'#!/bin/sh\n[ "$1" = --version ] || {FAILS}\n']
)
def test_a_compiler_that_fails_is_told_and_done_without(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    script: str,
) -> None:
    compiler = tmp_path / "bin" / "c++"
    compiler.parent.mkdir()
    compiler.write_text(script)
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{compiler.parent}:/bin:/usr/bin")
    assert compile_lora(tmp_path / "kernels") is None
    assert "no space left" in caplog.text


def test_a_kernel_is_compiled_once(tmp_path: Path) -> None:
    assert compile_lora(tmp_path) is not None
    (library,) = tmp_path.iterdir()
    made_at = library.stat().st_mtime_ns
    assert compile_lora(tmp_path) is not None
    assert [each.stat().st_mtime_ns for each in tmp_path.iterdir()] == [made_at]


@pytest.mark.parametrize("harm", ["cut off", "another's", "open to all"])
def test_a_library_that_cannot_be_trusted_is_compiled_anew(
    tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compile_lora(tmp_path / "first") is not None
    (made,) = (tmp_path / "first").iterdir()
    library = tmp_path / "second" / made.name
    library.parent.mkdir()
    library.write_bytes(b"" if harm == "cut off" else made.read_bytes())
    library.chmod(0o777 if harm == "open to all" else 0o700)
    owner = library.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + (harm == "another's"))
    before = library.stat().st_ino
    assert compile_lora(library.parent) is not None
    assert library.stat().st_size == made.stat().st_size
    assert library.stat().st_ino != before


def test_a_module_that_an_adapter_leaves_alone_keeps_its_bits(kernel: CpuLora) -> None:
    y, x = torch.full((2, OUT), -0.0), torch.randn(2, IN)
    (pair,) = make_segments([0], 8, torch.float32)
    shape = [(OUT, IN)]
    given = {"dtype": torch.float32, "device": torch.device("cpu"), "b_is_transposed": True}
    there = lora_table([pair._replace(b=pair.b.T.contiguous().T)], shape, **given)
    rows = [TableRows(0, 1, lora_table([None], shape, **given)), TableRows(1, 2, there)]
    module = CpuSegments.of(rows, kernel).at(0)
    assert module is not None
    add_lora(y, x, module)
    assert torch.signbit(y[0]).all()
    assert y[1].abs().sum() > 0


def test_what_would_be_read_or_written_wrong_is_refused(kernel: CpuLora) -> None:
    y, x = make_batch(3, torch.float32)
    segments = located(kernel, make_segments([0, 0, 0], 4, torch.float32))
    for wrong_y, wrong_x in (
        (y.bfloat16(), x.bfloat16()),
        (y, x.bfloat16()),
        (torch.randn(OUT, 3).T, x),
        (y[:2], x[:2]),
    ):
        with pytest.raises(ValueError, match="must"):
            add_lora(wrong_y, wrong_x, segments)
