"""What `loraplex bench kernels` measures, and what came of it."""

from dataclasses import dataclass
from pathlib import Path

import torch

from loraplex.platform.bench.floors import Floors, Work
from loraplex.platform.bench.kernels.case import Absent, Op
from loraplex.platform.bench.kernels.shape import KernelShape
from loraplex.platform.bench.machine import Machine


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """What is measured."""

    shape: KernelShape
    ops: tuple[Op, ...]
    dtypes: tuple[torch.dtype, ...]
    rows: tuple[int, ...]
    """Of dense layers and elementwise ops."""
    contexts: tuple[int, ...]
    """Of decodes."""
    prompts: tuple[int, ...]
    """Rows of a prompt whose attention is measured."""
    prefill: tuple[int, int]
    """Prompts, each on an adapter of its own, and rows of each."""
    layers: int
    """Of the shape's, at most: the more, the less a cache holds from one run to the next."""
    seconds: float
    """That each contender of a case is given, beyond its first run."""
    seed: int
    is_quick: bool
    """Fewer layers, contexts and prompts, to see that all of it runs."""
    kernels_dir: Path
    """Where kernels are compiled."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one contender."""

    contender: str
    times_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Times of one case, its contenders in turns."""

    op: Op
    name: str
    rows: int
    layers: int
    dtype: str
    work: Work
    timings: tuple[Timing, ...]
    absent: tuple[Absent, ...]
    wrong: tuple[Absent, ...]
    """Contenders that do not compute what is expected, and so were not timed."""


@dataclass(frozen=True, slots=True)
class KernelsResult:
    """All that was measured in one run."""

    machine: Machine
    plan: KernelPlan
    floors: Floors
    cases: tuple[CaseResult, ...]
