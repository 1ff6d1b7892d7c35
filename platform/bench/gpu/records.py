"""What stages of the check find out."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

_WORST = 1e30
"""Stands for what is no number, and for infinity: JSON has neither."""

Tolerance = tuple[float, float]
"""Relative to the expected value, and absolute."""

TOLERANCES: Mapping[torch.dtype, Tolerance] = {
    torch.float32: (2e-6, 1e-5),
    torch.bfloat16: (2**-8, 1e-5),  # half a unit in the last place: one rounding, at the end
    torch.float16: (2**-11, 1e-5),
}


@dataclass(frozen=True, slots=True)
class Check:
    """Whether something is computed right, over some cases."""

    name: str
    ok: bool
    num_cases: int = 1
    worst: float | None = None
    """Largest difference ÷ what is tolerated, where numbers are compared."""
    why: str = ""
    """What is wrong; of the worst case, if there are several."""
    kind: Literal["check"] = "check"


@dataclass(frozen=True, slots=True)
class Time:
    """How long something takes on the card."""

    name: str
    ms: float
    floor_ms: float | None = None
    """Its bytes ÷ the copy bandwidth or its FLOPs ÷ the GEMM rate of the same card, whichever is
    more."""
    kind: Literal["time"] = "time"


@dataclass(frozen=True, slots=True)
class Ratio:
    """What two measurements make together."""

    name: str
    value: float
    target: float | None = None
    """At least this is wanted; a miss is shown and fails nothing."""
    kind: Literal["ratio"] = "ratio"


@dataclass(frozen=True, slots=True)
class Fact:
    """A number of the machine, with its unit in its name; or, as text, why something is missing."""

    name: str
    value: float | str
    kind: Literal["fact"] = "fact"


Record = Check | Time | Ratio | Fact
Records = Iterator[Record]


@dataclass(slots=True)
class Comparison:
    """Many results beside what is expected of them, told as one check."""

    name: str
    tolerance: Tolerance
    num_cases: int = 0
    worst: float = 0.0
    why: str = field(default="", repr=False)

    def add(self, case: str, result: Tensor, expected: Tensor) -> None:
        """Compare one case; ``expected`` is float64."""
        relative, absolute = self.tolerance
        difference = (result.double() - expected).abs()
        worst = float((difference / (absolute + relative * expected.abs())).max())
        self.num_cases += 1
        if math.isnan(worst) or worst > _WORST:
            worst = _WORST
        if worst > self.worst:
            self.worst, self.why = worst, case

    def check(self) -> Check:
        """All cases together."""
        ok = self.num_cases > 0 and self.worst <= 1
        return Check(self.name, ok, self.num_cases, self.worst, "" if ok else self.why)


def equal_bits(name: str, one: Tensor, other: Tensor) -> Check:
    """Whether two tensors have the same bits; NaN equals itself, and -0.0 is not 0.0."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    different = int((one.contiguous().view(whole) != other.contiguous().view(whole)).sum())
    return Check(name, not different, why=f"{different} values differ" if different else "")
