"""Recorded requests, read from the files in which others have published them."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from loraplex.engine.simulation.errors import TraceInvalid

_LAST_S = 1e10
"""Seconds; times of day since 1970 are below it."""
_MOST_TOKENS = 10_000_000
_LARGEST_ID = 1 << 63


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace."""

    arrival_s: float
    tenant: str
    prompt_tokens: int
    """At least 1; so is `output_tokens`."""
    output_tokens: int
    """After so many the model ends the output by itself."""
    adapter: str | None = None
    """Its digest; None is the base model."""
    rank: int = 0
    cancelled_after_s: float | None = None
    """Its client leaves so long after its arrival, unless it has ended before."""
    hash_ids: tuple[int, ...] = ()
    """What its prompt says, where the trace tells: equal ids are equal blocks of 512 tokens."""


def read_trace(path: Path) -> tuple[TraceRequest, ...]:
    """Read a trace; its first line tells which kind it is. Sorted by arrival, which starts at 0.

    | kind | first line | source |
    |---|---|---|
    | VTC | arrival_s,client,input_tokens,output_tokens | Ying1123/VTC-artifact, as CSV |
    | ServeGen | arrival_s,tenant,input_tokens,output_tokens | alibaba/ServeGen, sampled |
    | Azure | TIMESTAMP,ContextTokens,GeneratedTokens | Azure/AzurePublicDataset; one tenant |
    | Mooncake | a JSON object with timestamp in ms | kvcache-ai/Mooncake; one tenant |

    Rows without tokens are left out: there is nothing to compute for them.

    Raises TraceInvalid, naming the file and where.
    """
    try:
        if path.exists() and not path.is_file():
            raise TraceInvalid(f"trace {path}: is not a file")
        with path.open(newline="", encoding="utf-8") as file:
            first = file.readline().strip()
            read = _READERS.get(first) or (_read_mooncake if first.startswith("{") else None)
            if read is None:
                raise TraceInvalid(
                    f"trace {path}: its first line is {first[:80]!r}, which is the header of no "
                    f"known kind; known are {'; '.join(_READERS)}; and Mooncake's JSON lines"
                )
            file.seek(0)
            requests = sorted(_checked(path, read(file)), key=lambda r: r.arrival_s)
    except (OSError, UnicodeDecodeError) as error:
        raise TraceInvalid(f"trace {path}: cannot be read: {error}") from error
    if not requests:
        raise TraceInvalid(f"trace {path}: holds no request")
    start_s = requests[0].arrival_s
    return tuple(_at(request, request.arrival_s - start_s) for request in requests)


def _at(request: TraceRequest, arrival_s: float) -> TraceRequest:
    return replace(request, arrival_s=arrival_s)


def _checked(path: Path, requests: Iterator[TraceRequest]) -> Iterator[TraceRequest]:
    num_read = 0
    try:
        for request in requests:
            _refuse_absurd(request)
            num_read += 1
            if request.prompt_tokens > 0 and request.output_tokens > 0:
                yield request
    except (KeyError, TypeError, ValueError, RecursionError, csv.Error) as error:
        told = f"a field is missing ({error})" if isinstance(error, KeyError) else str(error)
        raise TraceInvalid(
            f"trace {path}: the request after the first {num_read} cannot be read: {told}"
        ) from error


def _refuse_absurd(request: TraceRequest) -> None:
    if not abs(request.arrival_s) <= _LAST_S:
        raise ValueError(f"it arrives at {request.arrival_s} s")
    for name, number in (("input", request.prompt_tokens), ("output", request.output_tokens)):
        if not isinstance(number, int) or number > _MOST_TOKENS:
            raise ValueError(f"its {name} is {number} tokens; at most {_MOST_TOKENS} are simulated")
    if not all(isinstance(i, int) and abs(i) < _LARGEST_ID for i in request.hash_ids):
        raise ValueError("its hash_ids are not all numbers of 63 bits")


def _read_tenants(tenant_field: str) -> Callable[[Iterable[str]], Iterator[TraceRequest]]:
    def read(lines: Iterable[str]) -> Iterator[TraceRequest]:
        for row in csv.DictReader(lines):
            yield TraceRequest(
                float(row["arrival_s"]),
                row[tenant_field],
                int(row["input_tokens"]),
                int(row["output_tokens"]),
            )

    return read


def _read_azure(lines: Iterable[str]) -> Iterator[TraceRequest]:
    for row in csv.DictReader(lines):
        at = datetime.fromisoformat(row["TIMESTAMP"][:26] + "+00:00")
        yield TraceRequest(
            at.timestamp(), "azure", int(row["ContextTokens"]), int(row["GeneratedTokens"])
        )


def _read_mooncake(lines: Iterable[str]) -> Iterator[TraceRequest]:
    for line in lines:
        row = json.loads(line)
        yield TraceRequest(
            row["timestamp"] / 1e3,
            "mooncake",
            row["input_length"],
            row["output_length"],
            hash_ids=tuple(row["hash_ids"]),
        )


_READERS: Mapping[str, Callable[[Iterable[str]], Iterator[TraceRequest]]] = {
    "arrival_s,client,input_tokens,output_tokens": _read_tenants("client"),
    "arrival_s,tenant,input_tokens,output_tokens": _read_tenants("tenant"),
    "TIMESTAMP,ContextTokens,GeneratedTokens": _read_azure,
}
