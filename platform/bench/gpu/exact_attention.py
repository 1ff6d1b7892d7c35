"""Whether attention is right on the card: every implementation, beside sums in float64."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from loraplex.kernels.attention import Scoring
from loraplex.platform.bench.gpu.attention_ways import HeadShape, make_step, ways
from loraplex.platform.bench.gpu.records import Comparison, Fact, Record, Tolerance
from loraplex.platform.bench.gpu.stage import Setup

_TOLERANCES: Mapping[torch.dtype, Tolerance] = {
    torch.float32: (1e-5, 1e-5),
    torch.bfloat16: (2e-2, 2e-2),  # weights are rounded on the way
    torch.float16: (4e-3, 4e-3),
}
Sequences = Sequence[tuple[int, int]]
"""First position and rows of each."""


class Kind(NamedTuple):
    """Layers that differ in form."""

    shape: HeadShape
    scoring: Scoring

    def __str__(self) -> str:
        """Short enough for a table."""
        heads, scoring = self.shape, self.scoring
        window = f", window {scoring.window}" if scoring.window else ""
        cap = f", soft cap {scoring.softcap:g}" if scoring.softcap else ""
        return f"{heads.heads}/{heads.kv_heads} heads of {heads.dim}{window}{cap}"


def exact_attention(dtype: torch.dtype, setup: Setup) -> Iterator[Record]:
    """Compare decodes, prompts, prompts that go on, and all in one step."""
    sweep = _Sweep(dtype, _TOLERANCES[dtype], setup.device)
    for kind in _kinds(dtype, setup):
        for name, sequences in _steps(setup).items():
            sweep.compare(kind, name, sequences)
    yield from (comparison.check() for comparison in sweep.found.values())
    for name, reasons in sweep.absent.items():
        yield Fact(name, "; ".join(reasons))


@dataclass(frozen=True, slots=True)
class _Sweep:
    """All steps in one dtype."""

    dtype: torch.dtype
    tolerance: Tolerance
    device: torch.device
    found: dict[str, Comparison] = field(default_factory=dict)
    absent: dict[str, dict[str, None]] = field(default_factory=dict)
    """Reasons, each once."""

    def compare(self, kind: Kind, name: str, sequences: Sequences) -> None:
        """Try one step by all implementations."""
        named = str(self.dtype).removeprefix("torch.")
        step = make_step(sequences, kind.shape, self.dtype, self.device)
        results: dict[str, Tensor] = {}
        for way, attention in ways(step.layout, [kind.scoring], self.dtype, self.device):
            if isinstance(attention, str):
                left_out = f"attention, {way}, {named}, left out"
                self.absent.setdefault(left_out, {})[attention] = None
            else:
                title = f"attention, {way}, {name}, {named}"
                results[title] = step.attended(attention, kind.scoring)
        expected = step.expected(kind.scoring)
        for title, result in results.items():
            comparison = self.found.setdefault(title, Comparison(title, self.tolerance))
            comparison.add(str(kind), result, expected)


def _kinds(dtype: torch.dtype, setup: Setup) -> list[Kind]:
    """All in bfloat16, which models are served in; each is code of its own to be compiled."""
    if setup.small:
        shape = HeadShape(4, 2, 16)
        return [Kind(shape, Scoring(0.25)), Kind(shape, Scoring(0.25, window=9, softcap=1.5))]
    scoring = Scoring(0.1)
    most_used = HeadShape(32, 8, 128)
    kinds = [Kind(most_used, scoring), Kind(most_used, Scoring(0.1, window=33, softcap=1.5))]
    if dtype is torch.bfloat16:
        kinds += [
            Kind(most_used, Scoring(0.1, window=100)),
            Kind(most_used, Scoring(0.1, None, 1.5)),
        ]
        shapes = ((32, 32, 128), (32, 8, 64), (9, 3, 64), (16, 1, 96), (8, 4, 256))
        kinds += [Kind(HeadShape(*shape), scoring) for shape in shapes]
    return kinds


def _steps(setup: Setup) -> dict[str, Sequences]:
    if setup.small:
        return {"decodes": [(0, 1), (40, 1)], "mixed": [(0, 5), (7, 3), (31, 1)]}
    return {
        "decodes": [(0, 1), (1, 1), (63, 1), (200, 1), (1500, 1), (5000, 1)],
        "prompts": [(0, 2), (0, 133), (0, 300)],
        "mixed": [(31, 1), (0, 70), (7, 130), (300, 65), (90, 1)],
    }
