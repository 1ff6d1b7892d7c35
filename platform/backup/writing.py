"""Takes a backup beside whatever runs: the database as of one moment, and its adapters' bytes.

The bytes of an adapter are claimed before they are copied, so that no deletion takes them away
meanwhile. The folder gets its name when all of it is on the disk: one that is there is whole.
"""

import gzip
import os
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, Any

import msgspec
from sqlalchemy import Table, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.errors import AdapterError, CheckpointInvalid
from loraplex.adapters.registry import byte_claims
from loraplex.adapters.registry.byte_claims import Claim
from loraplex.adapters.registry.errors import BytesLeaving
from loraplex.adapters.registry.tables import AdapterVersion
from loraplex.adapters.storage import STORED_FILES, Store, verify
from loraplex.platform.backup import contents
from loraplex.platform.backup.contents import AdapterPart, Manifest, TablePart
from loraplex.platform.backup.errors import BackupIncomplete
from loraplex.platform.threads import in_thread
from loraplex.tenants.db import Database
from loraplex.tenants.secret import fingerprint

Progress = Callable[[str], None]
"""Hears how far the work is."""
BATCH_ROWS = 1000
TOLD_ROWS = 100 * BATCH_ROWS
"""Progress is told so often."""
FAST = 1
"""Level of compression: rows of usage become about a tenth with it."""


class BackupWriter:
    """Writes one backup."""

    def __init__(
        self, database: Database, store: Store, secret: bytes, now: datetime, progress: Progress
    ) -> None:
        self._database = database
        self._store = store
        self._secret = secret
        self._now = now
        self._progress = progress
        self._claims: dict[str, Claim] = {}
        """By digest, what is kept until it is copied."""

    async def write(self, path: Path) -> Manifest:
        """Make the folder `path`; nothing of it is left if that fails.

        Raises:
            BackupIncomplete: the folder exists, or an adapter's bytes are not in the store.
            OSError: it cannot be written, or the store cannot be read.
        """
        partial = _begin(path)
        try:
            manifest = await self._fill(partial)
            _publish(partial, path)
        finally:
            await self._give_up_claims()
            shutil.rmtree(partial, ignore_errors=True)
        return manifest

    async def _fill(self, folder: Path) -> Manifest:
        async with self._database.reader() as session:
            await self._claim(await _digests(session))
        async with self._database.snapshot() as session:
            revision = (
                await session.scalars(text("SELECT version_num FROM alembic_version"))
            ).one()
            digests = await _digests(session)
            # Those that were published since.
            await self._claim(digests)
            tables = [await self._table(session, t, folder) for t in contents.backed_up_tables()]
        adapters = [
            await self._adapter(digest, folder, f"adapter {number} of {len(digests)}")
            for number, digest in enumerate(digests, 1)
        ]
        manifest = Manifest(
            program=version("loraplex"),
            revision=revision,
            taken_at=self._now,
            secret_fingerprint=fingerprint(self._secret),
            tables=tuple(tables),
            adapters=tuple(adapters),
        )
        await in_thread(lambda: self._seal(folder, manifest))
        return manifest

    async def _claim(self, digests: Sequence[str]) -> None:
        for digest in digests:
            if digest in self._claims:
                continue
            try:
                async with self._database.session() as session:
                    claim = await byte_claims.begin_keep(session, digest, self._now)
            except BytesLeaving as error:
                raise _left(digest) from error
            self._claims[digest] = claim

    async def _give_up_claims(self) -> None:
        """What no version names any more, gateways remove from the store within a day."""
        async with self._database.session() as session:
            for claim in self._claims.values():
                await byte_claims.give_up(session, claim)

    async def _table(self, session: AsyncSession, table: Table, folder: Path) -> TablePart:
        path, rows = contents.table_file(folder, table.name), 0
        query = select(table).order_by(*table.primary_key.columns)
        with path.open("xb") as file, _compressed(file) as target:
            result = await session.stream(query.execution_options(yield_per=BATCH_ROWS))
            async for batch in result.partitions():
                lines = [msgspec.json.encode(tuple(row)) + b"\n" for row in batch]
                await in_thread(lambda lines=lines: target.writelines(lines))  # type: ignore[misc]  # of a default that binds
                rows += len(lines)
                if rows % TOLD_ROWS == 0:
                    self._progress(f"{table.name}: {rows} rows")
        part = await in_thread(lambda: contents.part_of(path))
        return TablePart(str(table.name), tuple(map(str, table.columns.keys())), rows, part)

    async def _adapter(self, digest: str, folder: Path, what: str) -> AdapterPart:
        self._progress(what)
        target = contents.adapter_folder(folder, digest)
        try:
            await in_thread(lambda: _copy(self._store, digest, target))
        except (AdapterError, CheckpointInvalid) as error:
            raise _left(digest) from error
        files = {file.name: contents.part_of(file) for file in sorted(target.iterdir())}
        return AdapterPart(digest, files)

    def _seal(self, folder: Path, manifest: Manifest) -> None:
        data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        (folder / contents.MANIFEST_FILE).write_bytes(data)
        (folder / contents.HMAC_FILE).write_text(contents.seal(data, self._secret))
        for path in folder.rglob("*"):
            _sync(path)


def _begin(path: Path) -> Path:
    """Make a folder beside the one that is wanted; only its owner may read what comes there. It is
    this backup's own: another one to the same place may run."""
    if path.exists():
        raise BackupIncomplete(f"{path} exists already; name a folder that does not.")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = Path(mkdtemp(".partial", f".{path.name}.", path.parent))
    (partial / "tables").mkdir()
    return partial


def _publish(partial: Path, path: Path) -> None:
    partial.rename(path)
    _sync(path.absolute().parent)


async def _digests(session: AsyncSession) -> list[str]:
    """Of all bytes that a version names."""
    named = AdapterVersion.status != "deleted"
    query = select(AdapterVersion.digest).where(named).distinct().order_by(AdapterVersion.digest)
    return list(await session.scalars(query))


def _copy(store: Store, digest: str, target: Path) -> None:
    home = store.open(digest)
    target.mkdir(parents=True)
    for name in STORED_FILES:
        if (home / name).exists():
            shutil.copyfile(home / name, target / name)
    verify(target, digest)


def _left(digest: str) -> BackupIncomplete:
    return BackupIncomplete(
        f"The adapter {digest} is not in the store, or not as it was stored. If it was deleted a "
        "moment ago, take the backup again; else publish it again or delete its version."
    )


def _compressed(file: IO[bytes]) -> Any:  # noqa: ANN401  typeshed's own is private
    return gzip.GzipFile("", "wb", FAST, file, mtime=0)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
