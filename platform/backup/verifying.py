"""Reads a backup to its end and believes nothing of it before."""

import gzip
import hmac
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Table

from loraplex.adapters.errors import AdapterCorrupt, CheckpointInvalid
from loraplex.adapters.storage import verify
from loraplex.platform.backup import contents
from loraplex.platform.backup.contents import AdapterPart, Manifest, TablePart
from loraplex.platform.backup.errors import BackupInvalid, RestoreRefused
from loraplex.platform.backup.writing import Progress
from loraplex.tenants.secret import fingerprint


def read_manifest(folder: Path, secret: bytes) -> Manifest:
    """Return what the backup says it holds, of which only the secret's owner can have said so.

    Raises:
        BackupInvalid: there is no backup, or its manifest was changed.
        RestoreRefused: it is of another format, or its keys were hashed with another secret.
    """
    try:
        data = (folder / contents.MANIFEST_FILE).read_bytes()
        seal = (folder / contents.HMAC_FILE).read_text()
        manifest = msgspec.json.decode(data, type=Manifest)
    except OSError as error:
        raise BackupInvalid(f"{folder} is no backup: {error.strerror}.") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BackupInvalid(f"{folder / contents.MANIFEST_FILE} cannot be read: {error}") from error
    if manifest.format != contents.FORMAT:
        raise RestoreRefused(
            f"The backup has format {manifest.format}; this version reads {contents.FORMAT}. "
            f"Restore it with version {manifest.program}."
        )
    if manifest.secret_fingerprint != fingerprint(secret):
        raise RestoreRefused(
            "The backup is of a deployment with another secret, so none of its keys would be "
            "accepted. Put that deployment's file 'secret' into the data directory, or set "
            "LORAPLEX_SECRET to its secret."
        )
    if not hmac.compare_digest(seal.encode(), contents.seal(data, secret).encode()):
        raise BackupInvalid(
            f"{folder / contents.MANIFEST_FILE} was changed after the backup was taken."
        )
    return manifest


def check_contents(folder: Path, manifest: Manifest, progress: Progress) -> None:
    """Read every file: lengths, sums, each row's types, each adapter's digest.

    Raises:
        BackupInvalid: something is missing, or is not what was backed up.
    """
    known = {table.name: table for table in contents.backed_up_tables()}
    for path, file in contents.parts(folder, manifest):
        contents.check_part(path, file)
    for part in manifest.tables:
        progress(f"checking {part.name}: {part.rows} rows")
        if part.name not in known:
            raise BackupInvalid(f"The backup has a table {part.name[:60]!r}, which we do not know.")
        for _ in rows(folder, known[part.name], part):
            pass
    for number, adapter in enumerate(manifest.adapters, 1):
        progress(f"checking adapter {number} of {len(manifest.adapters)}")
        _check_adapter(folder, adapter)


def rows(folder: Path, table: Table, part: TablePart) -> Iterator[dict[str, Any]]:
    """The rows of a table, by column. Raises BackupInvalid, at the latest after the last one."""
    if set(part.columns) != set(table.columns.keys()):
        raise BackupInvalid(f"The backup's table {part.name} has other columns than ours.")
    path = contents.table_file(folder, part.name)
    decoder, number = contents.row_decoder(table, part.columns), 0
    try:
        with gzip.open(path) as lines:
            for number, line in enumerate(lines, 1):  # noqa: B007  read after the loop
                yield dict(zip(part.columns, decoder.decode(line), strict=True))
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError) as error:
        raise BackupInvalid(f"{path}, row {number}: {error}") from error
    if number != part.rows:
        raise BackupInvalid(f"{path} has {number} rows; the manifest says {part.rows}.")


def _check_adapter(folder: Path, adapter: AdapterPart) -> None:
    try:
        verify(contents.adapter_folder(folder, adapter.digest), adapter.digest)
    except (AdapterCorrupt, CheckpointInvalid, OSError) as error:
        raise BackupInvalid(
            f"The backup's adapter {adapter.digest} is not whole: {error}"
        ) from error
