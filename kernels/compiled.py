"""Compiles the C++ of this package for the processor at hand, once, where a compiler is."""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

_log = logging.getLogger(__name__)

Kernel = TypeVar("Kernel")
Call = Callable[..., Any]

_SOURCES = Path(__file__).with_name("cpu")
_COMPILERS = ("g++", "c++")  # the second may be clang where both are
_FLAGS = (
    "-O3",
    "-march=native",
    "-std=c++17",
    "-fopenmp",
    "-shared",
    "-fPIC",
    "-Wno-psabi",
    "-ffp-contract=fast",
    # For some processors GCC rounds products before it adds them where one sum runs alone, and not
    # where several do: then a row's bits would depend on how many are computed beside it.
    "--param=avoid-fma-max-bits=0",
)
_COMPILE_TIMEOUT_S = 600  # a busy machine takes ten times the seconds of an idle one
_DIGEST_LENGTH = 16
_ABILITIES = ("flags", "Features", "CPU implementer", "CPU part")
"""Lines of /proc/cpuinfo that tell what a processor can do."""

LONG_CALL_PRODUCTS = 1 << 25
"""Products of numbers that take one core about a millisecond: a call of more gives up the
interpreter's lock.  Fewer take less time than it may take to get the lock back."""


@dataclass(frozen=True, slots=True)
class Function:
    """A compiled function, bound twice."""

    short: Call
    """Keeps the interpreter's lock."""
    long: Call
    """Gives it up, so that other threads run: what the call reads must not change meanwhile."""

    def for_work(self, products: int) -> Call:
        """Return what a call of so many products goes through."""
        return self.long if products > LONG_CALL_PRODUCTS else self.short


class Library:
    """What one source was compiled to."""

    def __init__(self, path: Path) -> None:
        """Load it.  Raises OSError if it is none."""
        self._keeping = ctypes.PyDLL(str(path))
        self._releasing = ctypes.CDLL(str(path))

    def bind(self, name: str, *argtypes: Any) -> Function:  # noqa: ANN401  ctypes has no public type of them
        """Return the function ``loraplex_NAME``, which returns nothing.

        Raises:
            AttributeError: there is none.
        """
        short, long = (each[f"loraplex_{name}"] for each in (self._keeping, self._releasing))
        for function in (short, long):
            function.argtypes, function.restype = argtypes, None
        return Function(short, long)

    def numbers(self, name: str, count: int) -> tuple[int, ...]:
        """Return what ``loraplex_NAME`` writes into ``int64_t[count]``.

        Raises:
            AttributeError: there is no such function.
        """
        written = (ctypes.c_int64 * count)()
        self.bind(name, ctypes.c_void_p).short(written)
        return tuple(written)

    def check_struct_bytes(self, name: str, expected: Sequence[int]) -> None:
        """Compare sizes of structs with what ``loraplex_NAME`` tells of them.

        Raises:
            OSError: they differ, so memory would be read wrong.
            AttributeError: there is no such function.
        """
        found = self.numbers(name, len(expected))
        if found != tuple(expected):
            raise OSError(f"{name} of the compiled code are {found}, not {tuple(expected)}")


@dataclass(frozen=True, slots=True)
class Build:
    """How kernels are compiled for this machine, and where they are kept."""

    folder: Path
    compiler: str
    flags: tuple[str, ...]
    fingerprint: str
    """Of what decides the code: the sources, how they are compiled, the processor's abilities."""

    @classmethod
    def of(cls, folder: Path, compiler: str, defines: Sequence[str] = ()) -> Self:
        """Look at the sources, the compiler and the processor.

        Args:
            folder: where libraries are kept.  What other machines or versions compiled there is
                left alone, so it may be shared.
            compiler: by which to compile.
            defines: flags beside those of all.

        Raises:
            OSError: it is clang, or cannot be run.
            subprocess.SubprocessError: it failed.
        """
        version = _run([compiler, "--version"])
        if "clang" in version:
            raise OSError(
                f"{compiler} is clang: kernels are compiled by GCC, whose OpenMP torch has"
            )
        flags = (*_FLAGS, *defines)
        processor = Path("/proc/cpuinfo")
        described = processor.read_text() if processor.exists() else ""
        abilities = sorted({line for line in described.splitlines() if line.startswith(_ABILITIES)})
        how = " ".join([*flags, platform.machine(), *abilities])
        sources = [path.read_bytes() for path in sorted(_SOURCES.iterdir())]
        parts = [*sources, version.encode(), how.encode()]
        return cls(folder, compiler, flags, hashlib.sha256(b"\0".join(parts)).hexdigest()[:16])

    def load(self, name: str, of: Callable[[Library], Kernel]) -> Kernel:
        """Return what ``of`` makes of a source, compiled at first.

        Args:
            name: of the source, such as ``lora``.
            of: binds a library's functions; raises AttributeError where one is missing, OSError
                where it is another's.

        Raises:
            OSError, AttributeError, subprocess.SubprocessError: it could not be compiled or loaded.
        """
        for library in sorted(self.folder.glob(f"{name}-{self.fingerprint}-*.so")):
            if (kernel := _load(library, of)) is not None:
                return kernel
        return of(Library(self._compile(name)))

    def _compile(self, name: str) -> Path:
        _log.info("compiling %s.cpp, once for this processor", name)
        started_s = time.monotonic()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            partial = Path(folder) / f"{name}.so"
            _run([self.compiler, *self.flags, str(_SOURCES / f"{name}.cpp"), "-o", str(partial)])
            partial.chmod(0o700)
            library = self.folder / f"{name}-{self.fingerprint}-{_digest(partial)}.so"
            partial.replace(library)  # several workers may compile at a time; each result is whole
        _log.info("compiled %s.cpp in %.0f s", name, time.monotonic() - started_s)
        return library


def find_compiler() -> str | None:
    """Return the C++ compiler that is used here, if there is one."""
    return next(filter(None, map(shutil.which, _COMPILERS)), None)


def _load(library: Path, of: Callable[[Library], Kernel]) -> Kernel | None:
    """Return what was compiled before, if it is whole and nobody else can write it.

    To load a library of which a part is missing would end the process.
    """
    try:
        found = library.stat()
        is_ours = found.st_uid == os.geteuid() and not found.st_mode & 0o022
        is_whole = library.stem.endswith(f"-{_digest(library)}")
        return of(Library(library)) if is_ours and is_whole else None
    except (OSError, AttributeError):
        return None


def _digest(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()[:_DIGEST_LENGTH]


def _run(command: list[str]) -> str:
    done = subprocess.run(  # noqa: S603  a compiler of this machine, on our own source
        command,
        check=True,
        capture_output=True,
        text=True,
        errors="replace",  # compilers speak the language and the encoding of their user
        timeout=_COMPILE_TIMEOUT_S,
    )
    return done.stdout
