"""How the rows of one step are drawn, as tensors on the device.

Each tensor names only the rows that an option concerns, so that a row pays for its own options and
a greedy row without any appears nowhere.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from loraplex.engine.plan import SampleSpec
from loraplex.engine.seeds import uniform

MIN_TEMPERATURE = 1e-30
"""What is lower draws the same, and does not overflow."""
_Marks: TypeAlias = tuple[tuple[int, ...], float | list[float]]
"""Token ids of one row, and one value for all or a value for each."""
_NO_TOP_K = 1 << 40
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


@dataclass(frozen=True, slots=True)
class Drawn:
    """Rows that are drawn by chance, all filtered or none."""

    rows: Tensor
    """[d] int64, within the group."""
    temperature: Tensor
    """[d, 1] float64, above 0; so is `uniform`, in [0, 1)."""
    uniform: Tensor
    filters: Filters | None


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that are worked on together."""

    rows: Tensor
    """[g] int64, of the sampled rows."""
    edits: Edits | None
    drawn: tuple[Drawn, ...]


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


def sampling_rows(
    specs: Sequence[SampleSpec], vocab_size: int, device: torch.device
) -> SamplingRows:
    """Lay out the options of `specs`, one for each sampled row, on the device."""
    rows = [row for row, spec in enumerate(specs) if not _is_plain(spec)]
    size = max(1, _CPU_GROUP_LOGITS // vocab_size) if device.type == "cpu" else max(1, len(rows))
    reported = [row for row, spec in enumerate(specs) if spec.num_top_logprobs is not None]
    return SamplingRows(
        num_rows=len(specs),
        groups=tuple(
            _group(rows[start : start + size], specs, device) for start in range(0, len(rows), size)
        ),
        reported=_ids(reported, device) if reported else None,
        num_top_logprobs=tuple(specs[row].num_top_logprobs or 0 for row in reported),
    )


def _is_plain(spec: SampleSpec) -> bool:
    return not (spec.temperature > 0 or _is_edited(spec))


def _is_edited(spec: SampleSpec) -> bool:
    return bool(spec.logit_bias or spec.forbidden_ids or spec.penalties is not None)


def _group(rows: Sequence[int], specs: Sequence[SampleSpec], device: torch.device) -> Group:
    options = [specs[row] for row in rows]
    return Group(
        rows=_ids(rows, device),
        edits=_edits(options, device) if any(map(_is_edited, options)) else None,
        drawn=tuple(_drawn(options, device)),
    )


def _edits(options: Sequence[SampleSpec], device: torch.device) -> Edits:
    def marked(of_row: Callable[[SampleSpec], _Marks]) -> Marked | None:
        return _marked([of_row(spec) for spec in options], device)

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


def _marked(of_rows: Sequence[_Marks], device: torch.device) -> Marked | None:
    lengths = [len(ids) for ids, _ in of_rows]
    if not any(lengths):
        return None
    values = [
        np.broadcast_to(np.asarray(value, np.float32), length)
        for (_, value), length in zip(of_rows, lengths, strict=True)
    ]
    ids = [np.asarray(ids, np.int64) for ids, _ in of_rows]
    return Marked(
        rows=torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)).to(device),
        ids=torch.from_numpy(np.concatenate(ids)).to(device),
        values=torch.from_numpy(np.concatenate(values)).to(device),
    )


def _drawn(options: Sequence[SampleSpec], device: torch.device) -> Iterable[Drawn]:
    """Those without a filter, those of which `top_k` leaves few, and others."""
    kinds: dict[str, list[tuple[int, SampleSpec]]] = {"all": [], "top_k": [], "share": []}
    for row, spec in enumerate(options):
        if spec.temperature > 0:
            has_share = spec.top_p < 1 or spec.min_p > 0
            kind = "top_k" if spec.top_k > 0 else "share" if has_share else "all"
            kinds[kind].append((row, spec))
    for kind, found in kinds.items():
        if found:
            specs = [spec for _, spec in found]
            yield Drawn(
                rows=_ids([row for row, _ in found], device),
                temperature=_column([max(s.temperature, MIN_TEMPERATURE) for s in specs], device),
                uniform=_column([uniform(s.seed, s.position) for s in specs], device),
                filters=None if kind == "all" else _filters(specs, device),
            )


def _filters(specs: Sequence[SampleSpec], device: torch.device) -> Filters:
    top_k = [spec.top_k or _NO_TOP_K for spec in specs]
    return Filters(
        top_k=_ids(top_k, device).unsqueeze(1),
        top_p=_column([spec.top_p if spec.top_p < 1 else torch.inf for spec in specs], device),
        min_p=_column([spec.min_p for spec in specs], device),
        max_top_k=max(top_k) if _NO_TOP_K not in top_k else None,
    )


def _ids(values: Iterable[int], device: torch.device) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int64).to(device)


def _column(values: Iterable[float], device: torch.device) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64).to(device).unsqueeze(1)
