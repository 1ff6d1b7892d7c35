"""One kernel at one shape: who computes it, and what that takes at least."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from loraplex.platform.bench.floors import Work

Op = Literal["lora", "dense", "attention", "elementwise"]
OURS = "ours"
NO_COMPILER = "there are no compiled kernels here: a C++ compiler is needed"

_TOLERANCES: Mapping[torch.dtype, float] = {torch.float32: 1e-5, torch.bfloat16: 2**-6}
"""Of the largest value that is expected: a sum that is rounded at each step stays within it, a
term that is missing does not."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to compute a case."""

    name: str
    run: Callable[[], object]
    """Computes all of it, which is timed."""
    output: Callable[[], Tensor]
    """Computes a part of it, which is compared."""


@dataclass(frozen=True, slots=True)
class Absent:
    """One way that is not measured here."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel at one shape."""

    op: Op
    name: str
    rows: int
    layers: int
    """How many layers' weights or caches a run goes through."""
    dtype: torch.dtype
    work: Work
    expected: Tensor
    """What `Contender.output` gives, by sums in float64."""
    contenders: tuple[Contender | Absent, ...]


def wrong(case: Case, output: Tensor) -> str | None:
    """Return what is wrong with an output; None if it is what is expected, within rounding."""
    expected = case.expected
    if output.shape != expected.shape:
        return f"computes {tuple(output.shape)}, not {tuple(expected.shape)}"
    off = (output.double() - expected).abs().max() / expected.abs().max().clamp(min=1e-30)
    if not off <= _TOLERANCES[case.dtype]:  # NaN is no number that is small enough
        return f"computes wrong: off by {float(off):.1e} of the largest value"
    return None
