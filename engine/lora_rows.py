"""Rows of a step, and the adapters of some."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.effects import EffectRows
from loraplex.kernels.lora import LoraSegment, PlainSegments
from loraplex.kernels.lora_cpu import CpuLora, CpuSegments
from loraplex.kernels.segments import StepSegments, TableRows, step_segments


class AdapterRows(NamedTuple):
    """Rows ``[start, end)`` of a step that one adapter computes."""

    start: int
    end: int
    weights: AdapterWeights


@dataclass(frozen=True, slots=True)
class LoraRows:
    """Rows of a step as a layer sees them, and the adapters of some."""

    num_rows: int
    adapters: tuple[AdapterRows, ...]
    """In order of rows, not overlapping; rows of the base model are in none."""
    located: StepSegments | CpuSegments | None = None
    """The same for compiled kernels, if all adapters have tables."""
    changing: tuple[AdapterRows, ...] = ()
    """Those of adapters that do more than low-rank updates of linear layers."""
    vocab_size: int = 0
    """Tokens of the widest adapter; 0 if all have those of the base model."""
    is_plain: bool = False
    """True has torch compute the low-rank updates on a GPU too."""
    found: dict[str, Sequence[EffectRows]] = field(default_factory=dict, compare=False)
    """What `effects` found; steps whose rows are the same share it."""

    @classmethod
    def of(
        cls, num_rows: int, adapters: Sequence[AdapterRows], cpu_lora: CpuLora | None = None
    ) -> Self:
        """Locate the adapters' rows for compiled kernels too, where tables are at hand.

        ``cpu_lora`` is the kernel of a CPU, if there is one.
        """
        rows = [
            TableRows(start, end, weights.table)
            for start, end, weights in adapters
            if weights.table is not None
        ]
        located: StepSegments | CpuSegments | None = None
        if rows and len(rows) == len(adapters):
            located = CpuSegments.of(rows, cpu_lora) if cpu_lora else step_segments(rows)
        return cls(
            num_rows,
            tuple(adapters),
            located,
            changing=tuple(each for each in adapters if each.weights.effects),
            vocab_size=max((each.weights.vocab_size or 0 for each in adapters), default=0),
        )

    def pairs(self, path: str) -> Sequence[LoraSegment]:
        """What the adapters add at ``path``, for torch."""
        found = [
            LoraSegment(start, end, pair.a, pair.b, pair.scale)
            for start, end, weights in self.adapters
            if (pair := weights.pairs.get(path)) is not None
        ]
        return PlainSegments(found) if self.is_plain else found

    def effects(self, path: str) -> Sequence[EffectRows]:
        """What adapters do at ``path`` beside that."""
        if not self.changing:
            return ()
        if path not in self.found:
            self.found[path] = [
                EffectRows(start, end, effect)
                for start, end, weights in self.changing
                if (effect := weights.effects.get(path)) is not None
            ]
        return self.found[path]
