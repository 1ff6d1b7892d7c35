"""How the rows of one step are drawn, as tensors on the device.

Each tensor names only the rows that an option concerns, so that a row pays for its own options and
a greedy row without any appears nowhere.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loraplex.engine.plan import SAMPLING, SampleSpec, StepPlan
from loraplex.engine.seeds import uniform
from loraplex.kernels.staging import Staging

MIN_TEMPERATURE = 1e-30
"""What is lower draws the same, and does not overflow."""
_Marks: TypeAlias = tuple[tuple[int, ...], float | list[float]]
"""Token ids of one row, and one value for all or a value for each."""
_NO_TOP_K = 1 << 40
_NOTHING = SampleSpec(temperature=0.0, top_p=1.0, top_k=0, seed=0, position=0)
_CPU_GROUP_LOGITS = 1 << 18
"""Logits that a CPU works on at a time, so that they stay in its cache."""


@dataclass(frozen=True, slots=True)
class Marked:
    """Single logits: `rows` and `ids` int64, `values` float32, all [n]."""

    rows: Tensor
    ids: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Edits:
    """What changes logits before anything is drawn, in this order; rows count within the group."""

    forbidden: Marked | None
    bias: Marked | None
    repeated: Marked | None
    """Values are repetition penalties; a token may be there more than once."""
    counted: Marked | None
    """Values are what presence and frequency penalties take off."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Which tokens may be drawn: three numbers for each row, all [d, 1]."""

    top_k: Tensor
    """int64; beyond any vocabulary to keep all."""
    top_p: Tensor
    """float64; +∞ keeps all."""
    min_p: Tensor
    """float64; 0 keeps all."""
    max_top_k: int | None
    """The largest `top_k`, if all rows have one."""

    def part(self, rows: slice) -> "Filters":
        """Of these rows alone."""
        return Filters(self.top_k[rows], self.top_p[rows], self.min_p[rows], self.max_top_k)


@dataclass(frozen=True, slots=True)
class Drawn:
    """How the d rows of a group are drawn by chance, all filtered or none."""

    temperature: Tensor
    """[d, 1] float64, above 0; so is `uniform`, in [0, 1)."""
    uniform: Tensor
    filters: Filters | None

    def part(self, rows: slice) -> "Drawn":
        """Of these rows alone."""
        filters = None if self.filters is None else self.filters.part(rows)
        return Drawn(self.temperature[rows], self.uniform[rows], filters)


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that are worked on together: all are drawn by chance, or none."""

    rows: Tensor
    """[g] int64, of the sampled rows."""
    edits: Edits | None
    drawn: Drawn | None


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The options of all sampled rows of one step."""

    num_rows: int
    groups: tuple[Group, ...]
    """All rows that are more than greedy."""
    reported: Tensor | None
    """[r] int64: rows whose log-probabilities are asked for."""
    num_top_logprobs: tuple[int, ...]
    """Of the reported rows."""


@dataclass(frozen=True, slots=True)
class SampledSpecs:
    """How n rows are drawn: most say all of it in `sampling`."""

    sampling: NDArray[np.void]
    """[n] of `plan.SAMPLING`."""
    positions: NDArray[np.int64]
    """[n]: numbers of the output tokens that are drawn."""
    specs: Mapping[int, SampleSpec]
    """By row, of those that ask for more."""

    @classmethod
    def of(cls, specs: Sequence[SampleSpec]) -> Self:
        """Lay out single specs."""
        sampling = [(s.temperature, s.top_p, s.top_k, s.min_p, s.seed % 2**64) for s in specs]
        positions = [spec.position for spec in specs]
        asking = {row: spec for row, spec in enumerate(specs) if _asks_for_more(spec)}
        return cls(np.array(sampling, SAMPLING), np.array(positions, np.int64), asking)

    @classmethod
    def of_plan(cls, plan: StepPlan) -> Self:
        """Of what samples, in the order of `StepPlan.sampled_keys`."""
        decodes = plan.decodes
        last = cls.of([chunk.sample for chunk in plan.prefills if chunk.sample is not None])
        later = {len(decodes) + row: spec for row, spec in last.specs.items()}
        return cls(
            np.concatenate((decodes.roster.sampling, last.sampling)),
            np.concatenate((decodes.draws, last.positions)),
            {**decodes.specs, **later},
        )

    def in_order(self, places: NDArray[np.int64]) -> "SampledSpecs":
        """The same rows in another order: `places` has, [n], where each comes from."""
        specs = self.specs
        if specs:
            rows = {place: row for row, place in enumerate(places.tolist())}
            specs = {rows[place]: spec for place, spec in specs.items()}
        return SampledSpecs(self.sampling.take(places), self.positions[places], specs)


def sampling_rows(rows: SampledSpecs, vocab_size: int, stage: Staging) -> SamplingRows:
    """Lay out the options of sampled rows on the device, once `stage` is sent."""
    size = max(1, _CPU_GROUP_LOGITS // vocab_size) if stage.device.type == "cpu" else 1 << 30
    groups: list[Group] = []
    for kind, members in _by_kind(rows):
        drawn = None if kind is _Kind.GREEDY else _drawn(rows, members, kind, stage)
        ids = stage.add(members)
        for start in range(0, len(members), size):
            part = slice(start, start + size)
            groups.append(
                Group(
                    rows=ids[part],
                    edits=_edits_of(rows.specs, members[part].tolist(), stage),
                    drawn=None if drawn is None else drawn.part(part),
                )
            )
    specs = sorted(rows.specs.items())
    reported = {row: s.num_top_logprobs for row, s in specs if s.num_top_logprobs is not None}
    return SamplingRows(
        num_rows=len(rows.positions),
        groups=tuple(groups),
        reported=stage.add(np.array(list(reported))) if reported else None,
        num_top_logprobs=tuple(reported.values()),
    )


class _Kind(IntEnum):
    """How rows are drawn that are drawn alike."""

    PLAIN = 0
    """The most likely, and nothing else."""
    GREEDY = 1
    """The most likely after edits."""
    ALL = 2
    """Without a filter."""
    TOP_K = 3
    """Of which `top_k` leaves few."""
    SHARE = 4


def _by_kind(rows: SampledSpecs) -> Iterator[tuple[_Kind, NDArray[np.intp]]]:
    """Rows of each kind that is more than plain."""
    sampling = rows.sampling
    kinds = np.where((sampling["top_p"] < 1) | (sampling["min_p"] > 0), _Kind.SHARE, _Kind.ALL)
    kinds[sampling["top_k"] > 0] = _Kind.TOP_K
    kinds[sampling["temperature"] <= 0] = _Kind.PLAIN
    edited = [row for row, spec in rows.specs.items() if _is_edited(spec)]
    kinds[edited] = np.maximum(kinds[edited], _Kind.GREEDY)
    for kind in (_Kind.GREEDY, _Kind.ALL, _Kind.TOP_K, _Kind.SHARE):
        members = (kinds == kind).nonzero()[0]
        if len(members):
            yield kind, members


def _asks_for_more(spec: SampleSpec) -> bool:
    return _is_edited(spec) or spec.num_top_logprobs is not None


def _is_edited(spec: SampleSpec) -> bool:
    return bool(spec.logit_bias or spec.forbidden_ids or spec.penalties is not None)


def _edits_of(specs: Mapping[int, SampleSpec], rows: Sequence[int], stage: Staging) -> Edits | None:
    edited = {place: specs[row] for place, row in enumerate(rows) if row in specs} if specs else {}
    if not any(map(_is_edited, edited.values())):
        return None
    return _edits([edited.get(place, _NOTHING) for place in range(len(rows))], stage)


def _edits(options: Sequence[SampleSpec], stage: Staging) -> Edits:
    def marked(of_row: Callable[[SampleSpec], _Marks]) -> Marked | None:
        return _marked([of_row(spec) for spec in options], stage)

    return Edits(
        forbidden=marked(lambda spec: (spec.forbidden_ids, -torch.inf)),
        bias=marked(lambda spec: _unzipped(spec.logit_bias)),
        repeated=marked(_repeated),
        counted=marked(_counted),
    )


def _repeated(spec: SampleSpec) -> _Marks:
    penalties = spec.penalties
    if penalties is None or penalties.repetition == 1:
        return (), 0.0
    return (*penalties.prompt_ids, *penalties.output_ids), penalties.repetition


def _counted(spec: SampleSpec) -> _Marks:
    penalties = spec.penalties
    if penalties is None or not (penalties.presence or penalties.frequency):
        return (), 0.0
    counts = Counter(penalties.output_ids)
    lost = [penalties.frequency * count + penalties.presence for count in counts.values()]
    return tuple(counts), lost


def _unzipped(pairs: Sequence[tuple[int, float]]) -> _Marks:
    return tuple(token_id for token_id, _ in pairs), [value for _, value in pairs]


def _marked(of_rows: Sequence[_Marks], stage: Staging) -> Marked | None:
    lengths = [len(ids) for ids, _ in of_rows]
    if not any(lengths):
        return None
    values = [
        np.broadcast_to(np.asarray(value, np.float32), length)
        for (_, value), length in zip(of_rows, lengths, strict=True)
    ]
    ids = [np.asarray(ids, np.int64) for ids, _ in of_rows]
    return Marked(
        rows=stage.add(np.repeat(np.arange(len(lengths)), lengths)),
        ids=stage.add(np.concatenate(ids)),
        values=stage.add(np.concatenate(values)),
    )


def _drawn(rows: SampledSpecs, members: NDArray[np.intp], kind: _Kind, stage: Staging) -> Drawn:
    sampling = rows.sampling[members]
    draws = zip(sampling["seed"].tolist(), rows.positions[members].tolist(), strict=True)
    return Drawn(
        temperature=_column(np.maximum(sampling["temperature"], MIN_TEMPERATURE), stage),
        uniform=_column(np.array([uniform(*draw) for draw in draws]), stage),
        filters=None if kind is _Kind.ALL else _filters(sampling, stage),
    )


def _filters(sampling: NDArray[np.void], stage: Staging) -> Filters:
    top_k = np.where(sampling["top_k"] > 0, sampling["top_k"], _NO_TOP_K)
    top_p = np.where(sampling["top_p"] < 1, sampling["top_p"], np.inf)
    return Filters(
        top_k=_column(top_k, stage),
        top_p=_column(top_p, stage),
        min_p=_column(sampling["min_p"], stage),
        max_top_k=int(top_k.max()) if sampling["top_k"].all() else None,
    )


def _column(values: NDArray[Any], stage: Staging) -> Tensor:
    return stage.add(np.ascontiguousarray(values)).unsqueeze(1)
