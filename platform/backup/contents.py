"""What a backup holds: a folder with rows of every table, adapters, and a manifest of both.

    manifest.json          what follows, with the length and SHA-256 of each file
    manifest.hmac          of the manifest's bytes, with the deployment's secret
    tables/<table>.jsonl.gz  one JSON array per row, in the order of the manifest's columns
    adapters/<digest>/…    a version's files, as the store has them

Values are spelt the same for every kind of database, so that a backup of one is restored into the
other. The secret itself is not in it: who has a backup can open no door with it.
"""

import hashlib
import hmac
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Column, Table

from loraplex.adapters.registry import tables as adapter_tables
from loraplex.platform.backup.errors import BackupInvalid
from loraplex.tenants import people_tables, quota_tables
from loraplex.tenants.columns import Base, UtcDateTime

FORMAT = 1
MANIFEST_FILE = "manifest.json"
HMAC_FILE = "manifest.hmac"
_SCHEMA = (adapter_tables, people_tables, quota_tables)
"""Modules that declare tables; importing them is what makes `Base` know them."""
LEFT_OUT = frozenset(
    {
        # Who runs, signs in or moves bytes at the moment of the backup does not do so later.
        *("gateway", "adapter_bytes_claim", "console_session", "sign_in_state"),
        # Rows that every database has of its own; the manifest has the secret's fingerprint.
        *("catalogue", "deployment"),
    }
)


class FilePart(msgspec.Struct, frozen=True, rename={"num_bytes": "bytes"}):
    """One file of a backup."""

    num_bytes: int
    sha256: str


class TablePart(msgspec.Struct, frozen=True):
    """The rows of one table."""

    name: str
    columns: tuple[str, ...]
    rows: int
    file: FilePart


class AdapterPart(msgspec.Struct, frozen=True):
    """One version's files, by name."""

    digest: str
    files: dict[str, FilePart]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What `manifest.json` says."""

    format: int = FORMAT
    program: str
    """Version of the program that wrote it."""
    revision: str
    """Of the database's tables."""
    taken_at: datetime
    secret_fingerprint: str
    tables: tuple[TablePart, ...]
    adapters: tuple[AdapterPart, ...]


def backed_up_tables() -> tuple[Table, ...]:
    """All tables that a backup holds, each after those that its rows point at."""
    return tuple(t for t in Base.metadata.sorted_tables if t.name not in LEFT_OUT)


def row_decoder(table: Table, columns: tuple[str, ...]) -> "msgspec.json.Decoder[tuple[Any, ...]]":
    """Decodes one row, and refuses one whose values are not of the columns' types."""
    types = [_type_of(table.columns[name]) for name in columns]
    row: Any = tuple[*types]  # type: ignore[valid-type]  # made from columns
    return msgspec.json.Decoder(row)


def _type_of(column: Column[Any]) -> Any:  # noqa: ANN401  a type or a union
    own = datetime if isinstance(column.type, UtcDateTime) else column.type.python_type
    return own | None if column.nullable else own


def table_file(folder: Path, name: str) -> Path:
    """Where the rows of a table lie."""
    return folder / "tables" / f"{name}.jsonl.gz"


def adapter_folder(folder: Path, digest: str) -> Path:
    """Where the files of a version lie."""
    return folder / "adapters" / digest


def part_of(path: Path) -> FilePart:
    """Read a file to its end."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return FilePart(file.tell(), sha256)


def parts(folder: Path, manifest: Manifest) -> Iterator[tuple[Path, FilePart]]:
    """All files that the manifest names."""
    for table in manifest.tables:
        yield table_file(folder, table.name), table.file
    for adapter in manifest.adapters:
        for name, part in adapter.files.items():
            yield adapter_folder(folder, adapter.digest) / name, part


def seal(manifest: bytes, secret: bytes) -> str:
    """The content of `manifest.hmac`."""
    return hmac.digest(secret, b"loraplex backup\0" + manifest, hashlib.sha256).hex()


def check_part(path: Path, expected: FilePart) -> None:
    """Raises BackupInvalid if a file is missing, or is not what the manifest says."""
    try:
        found = part_of(path)
    except OSError as error:
        raise BackupInvalid(f"{path} cannot be read: {error.strerror}") from error
    if found.num_bytes != expected.num_bytes:
        raise BackupInvalid(
            f"{path} has {found.num_bytes} bytes; the manifest says {expected.num_bytes}. The "
            "backup is not whole: copy it again, or take another."
        )
    if found.sha256 != expected.sha256:
        raise BackupInvalid(
            f"{path} is not what was backed up: its SHA-256 differs from the manifest's. Copy it "
            "again, or take another backup."
        )
