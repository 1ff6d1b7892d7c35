"""How the rows of one step are drawn, as tensors on the device.

Each tensor names only the rows that an option concerns, so that a row pays for its own options and
a greedy row without any appears nowhere. Rows of all but `SamplingRows.rows` and `reported` count
within `rows`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loraplex.engine.plan import SampleSpec
from loraplex.engine.seeds import uniform

MAX_TOP_LOGPROBS = 20
"""What OpenAI's clients may ask for. All rows are searched for this many, so that ties between
equals are decided alike whatever the others of the batch ask for."""
MIN_TEMPERATURE = 1e-30
"""What is lower draws the same, and does not overflow."""


@dataclass(frozen=True, slots=True)
class Marked:
    """Single logits: `rows`, `ids` int64 and `values` float64, all [n]."""

    rows: Tensor
    ids: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Counted:
    """Rows with a presence or frequency penalty, and the tokens of their outputs."""

    rows: Tensor
    """[c] int64."""
    presence: Tensor
    """[c, 1] float64; so is `frequency`."""
    frequency: Tensor
    outputs: Marked
    """Rows count within this `rows`; a token that came twice is there twice; values are 1."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """`rows` [f] int64 of those that are drawn, and the option's `values` [f, 1]."""

    rows: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Drawn:
    """Rows that are drawn by chance; filters count within these `rows`."""

    rows: Tensor
    """[d] int64."""
    temperature: Tensor
    """[d, 1] float64, above 0; so is `uniform`, in [0, 1)."""
    uniform: Tensor
    top_k: Filtered | None
    """Values int64, at least 1."""
    max_top_k: int
    top_p: Filtered | None
    min_p: Filtered | None


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The options of all sampled rows of one step."""

    num_rows: int
    rows: Tensor | None
    """[m] int64, ascending: rows that are more than greedy; None if there are none, and then so is
    all that follows but `reported`."""
    bias: Marked | None
    repeated: Marked | None
    """Values are repetition penalties; a token may be there more than once."""
    counted: Counted | None
    forbidden: Marked | None
    drawn: Drawn | None
    reported: Tensor | None
    """[r] int64: rows whose log-probabilities are asked for."""
    num_top_logprobs: tuple[int, ...]
    """Of the reported rows."""


def sampling_rows(specs: Sequence[SampleSpec], device: torch.device) -> SamplingRows:
    """Lay out the options of `specs`, one for each sampled row, on the device."""
    rows = [row for row, spec in enumerate(specs) if not _is_plain(spec)]
    options = [specs[row] for row in rows]
    reported = [row for row, spec in enumerate(specs) if spec.num_top_logprobs is not None]
    return SamplingRows(
        num_rows=len(specs),
        rows=_ids(rows, device) if rows else None,
        bias=_marked(
            [
                (row, token_id, value)
                for row, spec in enumerate(options)
                for token_id, value in spec.logit_bias
            ],
            device,
        ),
        repeated=_marked(_repeated(options), device),
        counted=_counted(options, device),
        forbidden=_marked(
            [
                (row, token_id, -torch.inf)
                for row, spec in enumerate(options)
                for token_id in spec.forbidden_ids
            ],
            device,
        ),
        drawn=_drawn(options, device),
        reported=_ids(reported, device) if reported else None,
        num_top_logprobs=tuple(specs[row].num_top_logprobs or 0 for row in reported),
    )


def _is_plain(spec: SampleSpec) -> bool:
    return not (
        spec.temperature > 0 or spec.logit_bias or spec.penalties is not None or spec.forbidden_ids
    )


def _repeated(options: Sequence[SampleSpec]) -> list[tuple[int, int, float]]:
    return [
        (row, token_id, spec.penalties.repetition)
        for row, spec in enumerate(options)
        if spec.penalties is not None and spec.penalties.repetition != 1
        for token_id in (*spec.penalties.prompt_ids, *spec.penalties.output_ids)
    ]


def _counted(options: Sequence[SampleSpec], device: torch.device) -> Counted | None:
    found = [
        (row, spec.penalties)
        for row, spec in enumerate(options)
        if spec.penalties is not None and (spec.penalties.presence or spec.penalties.frequency)
    ]
    outputs = _marked(
        [
            (place, token_id, 1.0)
            for place, (_, penalties) in enumerate(found)
            for token_id in penalties.output_ids
        ],
        device,
    )
    if outputs is None:
        return None
    return Counted(
        rows=_ids([row for row, _ in found], device),
        presence=_column([penalties.presence for _, penalties in found], device),
        frequency=_column([penalties.frequency for _, penalties in found], device),
        outputs=outputs,
    )


def _drawn(options: Sequence[SampleSpec], device: torch.device) -> Drawn | None:
    rows = [row for row, spec in enumerate(options) if spec.temperature > 0]
    if not rows:
        return None
    specs = [options[row] for row in rows]
    top_k = [(place, spec.top_k) for place, spec in enumerate(specs) if spec.top_k > 0]
    top_p = [(place, spec.top_p) for place, spec in enumerate(specs) if spec.top_p < 1]
    min_p = [(place, spec.min_p) for place, spec in enumerate(specs) if spec.min_p > 0]
    return Drawn(
        rows=_ids(rows, device),
        temperature=_column([max(spec.temperature, MIN_TEMPERATURE) for spec in specs], device),
        uniform=_column([uniform(spec.seed, spec.position) for spec in specs], device),
        top_k=_filtered(top_k, torch.int64, device),
        max_top_k=max((k for _, k in top_k), default=0),
        top_p=_filtered(top_p, torch.float64, device),
        min_p=_filtered(min_p, torch.float64, device),
    )


def _filtered(
    found: Sequence[tuple[int, float]], dtype: torch.dtype, device: torch.device
) -> Filtered | None:
    if not found:
        return None
    values = torch.tensor([value for _, value in found], dtype=dtype).to(device)
    return Filtered(_ids([place for place, _ in found], device), values.unsqueeze(1))


def _marked(found: Sequence[tuple[int, int, float]], device: torch.device) -> Marked | None:
    if not found:
        return None
    rows, ids, values = zip(*found, strict=True)
    return Marked(_ids(rows, device), _ids(ids, device), _column(values, device).squeeze(1))


def _ids(values: Iterable[int], device: torch.device) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int64).to(device)


def _column(values: Iterable[float], device: torch.device) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64).to(device).unsqueeze(1)
