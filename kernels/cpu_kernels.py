"""All that is compiled for a CPU, together."""

import logging
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from loraplex.kernels.attention_cpu import CpuAttention
from loraplex.kernels.compiled import Build, find_compiler
from loraplex.kernels.elementwise import CpuElementwise
from loraplex.kernels.linear_cpu import CpuLinear
from loraplex.kernels.lora_cpu import CpuLora

_log = logging.getLogger(__name__)


COMPILED_DTYPES = ("float32", "bfloat16")
"""Of rows and weights that all of them know."""


@dataclass(frozen=True, slots=True)
class CpuKernels:
    """The compiled kernels.  Any thread may call them: they keep nothing between calls."""

    lora: CpuLora
    attention: CpuAttention
    linear: CpuLinear
    elementwise: CpuElementwise


def compile_kernels(folder: Path, defines: Sequence[str] = ()) -> CpuKernels | None:
    """Return the kernels for this machine, compiled into ``folder`` at first; None if they cannot
    be: torch does all of it then, with the same results within rounding.

    ``defines`` are flags of the compiler, by which tests ask for wider vectors.
    """
    compiler = find_compiler()
    if compiler is None:
        _log.info("no C++ compiler: torch computes alone, which takes longer")
        return None
    try:
        build = Build.of(folder, compiler, defines)
        with ThreadPoolExecutor() as pool:  # a compiler takes seconds for each
            lora = pool.submit(build.load, "lora", CpuLora)
            attention = pool.submit(build.load, "attention", CpuAttention)
            linear = pool.submit(build.load, "linear", CpuLinear)
            elementwise = pool.submit(build.load, "elementwise", CpuElementwise)
        return CpuKernels(lora.result(), attention.result(), linear.result(), elementwise.result())
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", None) or error
        _log.warning("there are no compiled kernels, torch does their work: %s", told)
        return None
