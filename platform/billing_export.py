"""Billing exports: one row per request, and a manifest that says what the rows add up to.

A folder appears whole or not at all. The same ledger gives the same bytes, in whatever order its
rows were written.
"""

import csv
import hashlib
import io
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Literal

from loraplex.tenants.billing import BillingPeriod
from loraplex.tenants.ledger import UsageRecord
from loraplex.tenants.money import decimal_of

Format = Literal["csv", "jsonl"]

SCHEMA_VERSION = 1
COLUMNS = (
    *("request_id", "tenant", "tenant_id", "key_id", "requested_model", "model", "adapter_digest"),
    *("accepted_at", "first_token_at", "finished_at", "finish_reason"),
    *("prompt_tokens", "cached_tokens", "completion_tokens"),
    *("price_id", "currency", "cost_pico", "cost"),
    *("project_id", "service_tier", "source", "billable"),
)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


class ExportRefused(Exception):
    """The export was not written; the message says why."""


@dataclass(frozen=True, slots=True)
class Export:
    """What is exported, and how."""

    period: BillingPeriod
    format: Format
    tenant: str | None
    """Name of the one tenant; None for all."""
    made_at: datetime

    @property
    def period_is_over(self) -> bool:
        """False while requests may still be accepted in it."""
        return self.made_at >= self.period.end


@dataclass(slots=True)
class Totals:
    """What rows add up to."""

    rows: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost_pico: dict[str, int] = field(default_factory=dict)
    """By currency."""

    def add(self, record: UsageRecord) -> None:
        """Count one row."""
        self.rows += 1
        self.prompt_tokens += record.prompt_tokens
        self.cached_tokens += record.cached_tokens
        self.completion_tokens += record.completion_tokens
        if record.currency is not None:
            before = self.cost_pico.get(record.currency, 0)
            self.cost_pico[record.currency] = before + record.cost_pico

    def as_json(self) -> dict[str, object]:
        """Sums as decimal strings, which no reader of JSON rounds."""
        return {
            "prompt_tokens": str(self.prompt_tokens),
            "cached_tokens": str(self.cached_tokens),
            "completion_tokens": str(self.completion_tokens),
            "cost": {
                currency: {"pico": str(pico), "amount": decimal_of(pico)}
                for currency, pico in sorted(self.cost_pico.items())
            },
        }


class RowFile:
    """A file of rows that is being written, with what its manifest says of it."""

    def __init__(self, path: Path, names: Mapping[str, str]) -> None:
        """The suffix of `path` is the format; `names` are those of tenants by id."""
        self._path = path
        self._names = names
        self._file: IO[bytes] = path.open("xb")
        self._sha256 = hashlib.sha256()
        self._num_bytes = 0
        self.totals = Totals()
        if path.suffix == ".csv":
            self._put(_csv_line(COLUMNS))

    def add(self, record: UsageRecord) -> None:
        """Write one row."""
        self.totals.add(record)
        row = _row(record, self._names[record.tenant_id])
        if self._path.suffix == ".csv":
            self._put(_csv_line([_cell(row[column]) for column in COLUMNS]))
        else:
            line = json.dumps({"schema_version": SCHEMA_VERSION} | row, ensure_ascii=False)
            self._put(line.encode() + b"\n")

    def finish(self) -> dict[str, object]:
        """Bring the file to the disk; return its entry in the manifest."""
        _sync(self._file)
        return {
            "name": self._path.name,
            "rows": self.totals.rows,
            "bytes": self._num_bytes,
            "sha256": self._sha256.hexdigest(),
        }

    def close(self) -> None:
        """Close the file, however far it came."""
        self._file.close()

    def _put(self, line: bytes) -> None:
        self._file.write(line)
        self._sha256.update(line)
        self._num_bytes += len(line)


@contextmanager
def exporting(export: Export, names: Mapping[str, str], out: Path) -> Iterator[RowFile]:
    """Write the rows that are added to a new folder `out`; without an error it appears at the end.

    `names` are those of tenants by id.

    Raises:
        ExportRefused: `out` has something in it already, or cannot be written.
    """
    partial = out.with_name(f".{out.name}.{uuid.uuid4().hex}.partial")
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ExportRefused(f"{out} exists already; choose another --out, or remove it.")
        partial.mkdir(parents=True)
        rows = RowFile(partial / f"usage.{export.format}", names)
        try:
            yield rows
            manifest = _manifest(export, rows.totals, rows.finish())
        finally:
            rows.close()
        with (partial / "manifest.json").open("xb") as file:
            file.write(json.dumps(manifest, indent=2).encode() + b"\n")
            _sync(file)
        # Over an empty folder too; one that was filled meanwhile stays as it is.
        partial.rename(out)
    except OSError as error:
        raise ExportRefused(f"{out} cannot be written: {error.strerror}.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_whole(period: BillingPeriod, whole_from: datetime | None) -> None:
    """Raise ExportRefused where usage of the period was removed, or may have been."""
    if whole_from is not None and period.start < whole_from:
        raise ExportRefused(
            f"Usage before {rfc3339(whole_from)} was removed (LORAPLEX_USAGE_DAYS), so "
            f"{period.name} cannot be exported any more; take an export of earlier, or restore a "
            "backup."
        )


def read_manifest(out: Path) -> dict[str, object]:
    """Return the manifest of an export."""
    manifest: dict[str, object] = json.loads((out / "manifest.json").read_bytes())
    return manifest


def _manifest(export: Export, totals: Totals, file: dict[str, object]) -> dict[str, object]:
    return {
        "schema_version": SCHEMA_VERSION,
        "period": {
            "name": export.period.name,
            "start": rfc3339(export.period.start),
            "end": rfc3339(export.period.end),
        },
        "period_complete": export.period_is_over,
        "tenant": export.tenant,
        "made_at": rfc3339(export.made_at),
        "rows": totals.rows,
        "totals": totals.as_json(),
        "files": [file],
    }


def rfc3339(moment: datetime) -> str:
    """A time in UTC with microseconds, always as long: `2026-11-30T08:15:00.000000Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _row(record: UsageRecord, tenant: str) -> dict[str, object]:
    first_token_at = record.first_token_at
    return {
        "request_id": record.request_id,
        "tenant": tenant,
        "tenant_id": record.tenant_id,
        "key_id": record.key_id,
        "requested_model": record.requested_model,
        "model": record.model,
        "adapter_digest": record.adapter_digest,
        "accepted_at": rfc3339(record.accepted_at),
        "first_token_at": None if first_token_at is None else rfc3339(first_token_at),
        "finished_at": rfc3339(record.finished_at),
        "finish_reason": record.finish_reason,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "completion_tokens": record.completion_tokens,
        "price_id": record.price_id,
        "currency": record.currency,
        "cost_pico": str(record.cost_pico),
        "cost": decimal_of(record.cost_pico),
        "project_id": record.project_id,
        "service_tier": record.service_tier,
        "source": record.source,
        "billable": "true" if record.billable else "false",
    }


def _cell(value: object) -> str:
    """Text that a spreadsheet would run as a formula gets an apostrophe before it."""
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _csv_line(cells: tuple[str, ...] | list[str]) -> bytes:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue().encode()


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
