"""Public traces of requests, recognised by their header; lengths and times only, no text.

- CSV: `arrival_s` (seconds), `input_tokens`, `output_tokens`, and `tenant` or `client` if it has
  them: the form of VTC's trace (Ying1123/VTC-artifact), and of exports of our own.
- CSV: `TIMESTAMP` (a date), `ContextTokens`, `GeneratedTokens`: Azure's traces of 2023 and 2024
  (Azure/AzurePublicDataset).
- JSON lines: `timestamp` (milliseconds), `input_length`, `output_length`: Mooncake's
  (kvcache-ai/Mooncake).
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from loraplex.platform.load.arrivals import Arrival
from loraplex.platform.load.errors import LoadRefused

Fields = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Format:
    """A kind of trace."""

    time: str
    input_tokens: str
    output_tokens: str
    tenants: tuple[str, ...]
    """Columns of which the first that is there says who asks."""
    seconds: Callable[[str], float]

    @property
    def required(self) -> frozenset[str]:
        return frozenset({self.time, self.input_tokens, self.output_tokens})


def _date_seconds(text: str) -> float:
    # Azure's dates of 2023 have no zone, those of 2024 do; only differences count.
    return datetime.fromisoformat(text).timestamp()


_FORMATS = (
    _Format("arrival_s", "input_tokens", "output_tokens", ("tenant", "client"), float),
    _Format("TIMESTAMP", "ContextTokens", "GeneratedTokens", (), _date_seconds),
    _Format("timestamp", "input_length", "output_length", (), lambda text: float(text) / 1e3),
)


def read_trace(path: Path, speed: float = 1.0, max_requests: int | None = None) -> list[Arrival]:
    """Read the first requests of a trace, in order of arrival; the first comes at 0.

    `speed` divides all times. A length of 0 counts as 1: every request has a prompt and an answer.
    Raises LoadRefused: the file cannot be read, its header is unknown, or a row makes no sense.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            arrivals = sorted(_arrivals(path, file), key=lambda arrival: arrival.at_s)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LoadRefused(f"the trace {path} cannot be read: {error}") from error
    if not arrivals:
        raise LoadRefused(f"the trace {path} has no requests")
    first_s = arrivals[0].at_s
    return [
        replace(arrival, at_s=(arrival.at_s - first_s) / speed)
        for arrival in arrivals[:max_requests]
    ]


def _arrivals(path: Path, file: Iterable[str]) -> Iterator[Arrival]:
    known: _Format | None = None
    for number, fields in _rows(path, file):
        if known is None:
            known = _recognise(path, fields)
        try:
            yield _arrival(known, fields)
        except (KeyError, TypeError, ValueError) as error:
            raise LoadRefused(f"{path}, line {number}: {fields} is no request: {error}") from error


def _rows(path: Path, file: Iterable[str]) -> Iterator[tuple[int, Fields]]:
    """Number of the line, and its values by column; JSON lines if the first one is an object."""
    lines = enumerate(file, start=1)
    for number, line in lines:
        if line.startswith("{"):
            yield number, _json_fields(path, number, line)
        elif line.strip():
            header = [name.strip() for name in next(csv.reader([line]))]
            for row_number, row in lines:
                if row.strip():
                    yield row_number, dict(zip(header, next(csv.reader([row])), strict=False))


def _json_fields(path: Path, number: int, line: str) -> Fields:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise LoadRefused(f"{path}, line {number} is no JSON: {error}") from error
    return {name: str(value) for name, value in fields.items()}


def _recognise(path: Path, fields: Fields) -> _Format:
    for known in _FORMATS:
        if known.required <= fields.keys():
            return known
    expected = "; or ".join(
        ", ".join((known.time, known.input_tokens, known.output_tokens)) for known in _FORMATS
    )
    raise LoadRefused(f"the trace {path} has the columns {', '.join(fields)}; known are {expected}")


def _arrival(known: _Format, fields: Fields) -> Arrival:
    tenant = next((fields[name] for name in known.tenants if name in fields), None)
    at_s = known.seconds(fields[known.time])
    lengths = [int(fields[name]) for name in (known.input_tokens, known.output_tokens)]
    if not (at_s < float("inf") and min(lengths) >= 0):
        raise ValueError("times and lengths are numbers from 0")
    return Arrival(at_s, max(1, lengths[0]), max(1, lengths[1]), tenant)
