"""Low-rank updates on CPUs by compiled code, where a compiler is at hand; see ``lora_cpu.cpp``."""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loraplex.kernels.segments import LoraTable, TableRows

_log = logging.getLogger(__name__)

_SOURCE = Path(__file__).with_name("lora_cpu.cpp")
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-shared", "-fPIC", "-Wno-psabi")
_COMPILE_TIMEOUT_S = 120
_ABILITIES = ("flags", "Features", "CPU implementer", "CPU part")
"""Lines of /proc/cpuinfo that tell what a processor can do."""

MAX_ROWS = 8
"""Of a segment that is computed here; a longer one is work for matrix products, not for bytes."""

_Add = Callable[..., None]


@dataclass(frozen=True, slots=True)
class CpuSegments:
    """A step's segments for all modules."""

    kernel: "CpuLora"
    chunks: Tensor
    """``[chunks, 3]`` int64: address of the adapter's entries, first row, row after the last; of
    segments of at most ``MAX_ROWS`` rows."""
    long: tuple[TableRows, ...]
    """The other segments."""
    max_ranks: NDArray[np.int64]
    """``[modules]``: largest rank among the adapters."""
    end: int
    """Row after the last of all segments."""
    tables: tuple[LoraTable, ...]
    """Held, since their addresses are in use."""

    @classmethod
    def of(cls, rows: Sequence[TableRows], kernel: "CpuLora") -> "CpuSegments":
        """Lay out a step; ``rows`` are at least one and do not overlap."""
        short = [segment for segment in rows if segment.end - segment.start <= MAX_ROWS]
        chunks = [(s.table.entries.data_ptr(), s.start, s.end) for s in short]
        return cls(
            kernel=kernel,
            chunks=torch.tensor(chunks, dtype=torch.int64).view(-1, 3),
            long=tuple(segment for segment in rows if segment.end - segment.start > MAX_ROWS),
            max_ranks=np.max([segment.table.ranks for segment in rows], axis=0),
            end=max(segment.end for segment in rows),
            tables=tuple(segment.table for segment in rows),
        )

    def at(self, module: int) -> "CpuModuleSegments | None":
        """Return what one module sees; None if no adapter of the step targets it."""
        return CpuModuleSegments(self, module) if self.max_ranks[module] else None


@dataclass(frozen=True, slots=True)
class CpuModuleSegments:
    """A step's segments as one module sees them."""

    step: CpuSegments
    module: int
    """Which entry of each table to read."""


class CpuLora:
    """The compiled kernel.  Belongs to one thread, since it keeps scratch memory."""

    def __init__(self, library: Path) -> None:
        """Load what ``compile_lora`` made.  Raises OSError if it cannot be loaded."""
        # PyDLL keeps the interpreter's lock: a call is shorter than what giving it up may cost.
        loaded = ctypes.PyDLL(str(library))
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        self._adds: dict[torch.dtype, _Add] = {}
        for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
            add = loaded[f"loraplex_add_lora_{name}"]
            add.argtypes = [
                *(pointer, pointer, integer, integer),
                *(pointer, integer, integer, pointer, integer),
            ]
            add.restype = None
            self._adds[dtype] = add
        self._scratch = torch.empty(0)

    def supports(self, dtype: torch.dtype) -> bool:
        """True if weights and rows of this dtype can be computed."""
        return dtype in self._adds

    def add(self, y: Tensor, x: Tensor, segments: CpuModuleSegments) -> None:
        """Add the updates of the chunks of ``segments`` to ``y``, in place; see ``add_lora``.

        Args:
            y: ``[rows, out]``, contiguous, a dtype that is supported.
            x: ``[rows, in]``, the dtype of ``y``.
            segments: of adapters on this CPU, whose tables have ``b`` transposed in memory; those
                that are long are left out.

        Raises:
            ValueError: memory would be read or written wrong.
        """
        step = segments.step
        chunks = step.chunks
        if not chunks.shape[0]:
            return
        dtypes = {y.dtype, x.dtype, *(table.dtype for table in step.tables)}
        if len(dtypes) > 1 or y.dtype not in self._adds:
            raise ValueError(f"rows and weights must have one dtype that is supported: {dtypes}")
        if not y.is_contiguous() or step.end > min(x.shape[0], y.shape[0]):
            raise ValueError(f"y must be contiguous, and have {step.end} rows as x has")
        x = x.contiguous()
        rows, width = x.shape
        self._reserve(rows * (width + int(step.max_ranks[segments.module])))
        self._adds[y.dtype](
            y.data_ptr(),
            x.data_ptr(),
            width,
            y.shape[1],
            chunks.data_ptr(),
            chunks.shape[0],
            segments.module,
            self._scratch.data_ptr(),
            torch.get_num_threads(),
        )

    def _reserve(self, num_floats: int) -> None:
        if self._scratch.numel() < num_floats:
            self._scratch = torch.empty(num_floats)


def transposed_in_memory(b: Tensor) -> Tensor:
    """Return ``b [out, rank]`` with its bytes in the order of ``[rank, out]``."""
    return b.T.contiguous().T


def compile_lora(folder: Path) -> CpuLora | None:
    """Return the kernel for this machine, compiled into ``folder`` at first; None if it cannot be.

    What other machines or versions compiled there is left alone, so a folder may be shared.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        _log.info("no C++ compiler: adapters are computed by torch alone, which takes longer")
        return None
    try:
        library = folder / f"lora_cpu-{_fingerprint(compiler)}.so"
        return _load(library) or CpuLora(_compile(compiler, library))
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", None) or error
        _log.warning("there is no CPU kernel of adapters, torch does its work: %s", told)
        return None


def _load(library: Path) -> CpuLora | None:
    """Return the kernel that was compiled before, if it is whole and nobody else can write it."""
    try:
        found = library.stat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return None
        return CpuLora(library)
    except (OSError, AttributeError):
        return None


def _fingerprint(compiler: str) -> str:
    """What decides the code: the source, how it is compiled, and the processor's abilities."""
    version = _run([compiler, "--version"])
    processor = Path("/proc/cpuinfo")
    described = processor.read_text() if processor.exists() else ""
    abilities = sorted({line for line in described.splitlines() if line.startswith(_ABILITIES)})
    compiled = " ".join([*_FLAGS, platform.machine(), *abilities])
    parts = [_SOURCE.read_bytes(), version.encode(), compiled.encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _compile(compiler: str, library: Path) -> Path:
    library.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        partial = Path(folder) / library.name
        _run([compiler, *_FLAGS, str(_SOURCE), "-o", str(partial)])
        partial.chmod(0o700)
        partial.replace(library)  # several workers may compile at a time; each result is whole
    return library


def _run(command: list[str]) -> str:
    done = subprocess.run(  # noqa: S603  a compiler of this machine, on our own source
        command, check=True, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S
    )
    return done.stdout
