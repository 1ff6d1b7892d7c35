"""Kernels are compiled where a compiler is, once, and nobody else's are loaded."""

import os
from pathlib import Path

import pytest
import torch

from loraplex.kernels.compiled import Build, find_compiler
from loraplex.kernels.cpu_kernels import CpuKernels, compile_kernels
from loraplex.kernels.linear_cpu import CpuLinear


def test_without_a_compiler_there_is_no_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compile_kernels(tmp_path) is None


FAILS = r"{ printf 'no space left, \351' >&2; exit 1; }"


@pytest.mark.parametrize(
    "script", [f"#!/bin/sh\n{FAILS}\n", f'#!/bin/sh\n[ "$1" = --version ] || {FAILS}\n']
)
def test_a_compiler_that_fails_is_told_and_done_without(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    script: str,
) -> None:
    compiler = tmp_path / "bin" / "g++"
    compiler.parent.mkdir()
    compiler.write_text(script)
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{compiler.parent}:/bin:/usr/bin")
    assert compile_kernels(tmp_path / "kernels") is None
    assert "no space left" in caplog.text


def load(folder: Path) -> CpuLinear:
    compiler = find_compiler()
    assert compiler is not None, "the tests need a C++ compiler"
    return Build.of(folder, compiler).load("linear", CpuLinear)


def test_a_kernel_is_compiled_once(tmp_path: Path) -> None:
    load(tmp_path)
    (library,) = tmp_path.iterdir()
    made_at = library.stat().st_mtime_ns
    load(tmp_path)
    assert [each.stat().st_mtime_ns for each in tmp_path.iterdir()] == [made_at]


@pytest.mark.usefixtures("compiled_kernels")
def test_code_of_another_layout_is_not_loaded() -> None:
    """Here: of more numbers in a struct than there are."""
    compiler = find_compiler()
    assert compiler is not None
    build = Build.of(Path(os.environ["LORAPLEX_KERNELS_DIR"]), compiler)
    library = build.load("attention", lambda loaded: loaded)
    with pytest.raises(OSError, match="attention_struct_bytes of the compiled code are"):
        library.check_struct_bytes("attention_struct_bytes", (64, 64))
    with pytest.raises(AttributeError):
        library.check_struct_bytes("no_struct_bytes", (64,))


def test_clang_is_refused_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho Apple clang version 15.0.0\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert compile_kernels(tmp_path / "kernels") is None
    assert "kernels are compiled by GCC" in caplog.text


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads what Linux tells")
def test_compiled_code_runs_on_the_threads_of_torch(compiled_kernels: CpuKernels) -> None:
    assert compiled_kernels.linear.supports(torch.float32), "it is loaded"
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    names = {path.rpartition("/")[2] for path in mapped}
    assert sum(name.startswith(("libgomp", "libomp", "libiomp")) for name in names) == 1


@pytest.mark.parametrize("harm", ["empty", "cut off", "another's", "open to all"])
def test_a_library_that_cannot_be_trusted_is_compiled_anew(
    tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(tmp_path / "first")
    (made,) = (tmp_path / "first").iterdir()
    library = tmp_path / "second" / made.name
    library.parent.mkdir()
    kept = {"empty": 0, "cut off": made.stat().st_size // 2}
    library.write_bytes(made.read_bytes()[: kept.get(harm)])
    library.chmod(0o777 if harm == "open to all" else 0o700)
    owner = library.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + (harm == "another's"))
    before = library.stat().st_ino
    load(library.parent)
    assert library.stat().st_size == made.stat().st_size
    assert library.stat().st_ino != before
