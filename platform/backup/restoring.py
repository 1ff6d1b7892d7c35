"""Puts a backup into an empty deployment: adapters first, then all rows in one transaction.

What dies on the way leaves bytes that no version names, which are swept, and no row. Copies of
budgets that gateways share are void afterwards: every budget gets an epoch that none of them has.
"""

from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Table, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.checkpoint import Checkpoint, examine, read_profile
from loraplex.adapters.registry.gateways import LEASE
from loraplex.adapters.registry.tables import AdapterUpload, Gateway
from loraplex.adapters.registry.uploads import OPEN
from loraplex.adapters.storage import Store
from loraplex.platform.backup import contents, verifying
from loraplex.platform.backup.contents import Manifest
from loraplex.platform.backup.errors import RestoreRefused
from loraplex.platform.backup.writing import BATCH_ROWS, TOLD_ROWS, Progress
from loraplex.platform.threads import in_thread
from loraplex.tenants import audit
from loraplex.tenants.audit import Act
from loraplex.tenants.columns import Base
from loraplex.tenants.db import Database
from loraplex.tenants.quota_tables import BudgetEpoch
from loraplex.tenants.secret import confirm_secret
from loraplex.tenants.tables import Deployment


class Restorer:
    """Restores one backup into one deployment."""

    def __init__(
        self, database: Database, store: Store, secret: bytes, now: datetime, progress: Progress
    ) -> None:
        self._database = database
        self._store = store
        self._secret = secret
        self._now = now
        self._progress = progress

    async def restore(self, folder: Path) -> Manifest:
        """Restore a backup whole, or change no row.

        Raises:
            BackupInvalid: it is not whole, or was changed.
            RestoreRefused: it is of another version or secret, the deployment is not empty, or a
                gateway runs on it.
        """
        manifest = await in_thread(lambda: verifying.read_manifest(folder, self._secret))
        async with self._database.reader() as session:
            await _check_revision(session, manifest)
            await self._check_place(session)
        await in_thread(lambda: verifying.check_contents(folder, manifest, self._progress))
        for number, adapter in enumerate(manifest.adapters, 1):
            self._progress(f"adapter {number} of {len(manifest.adapters)}")
            home = contents.adapter_folder(folder, adapter.digest)
            await in_thread(lambda d=adapter.digest, h=home: self._put(d, h))  # type: ignore[misc]  # of defaults that bind
        async with self._database.session() as session:
            await _lock(session)
            await self._check_place(session)
            await self._fill(session, folder, manifest)
        return manifest

    async def _check_place(self, session: AsyncSession) -> None:
        """Look whether somebody uses the deployment, and whether something is in it."""
        runs = select(Gateway.id).where(Gateway.seen_at >= self._now - LEASE).limit(1)
        if (gateway := await session.scalar(runs)) is not None:
            raise RestoreRefused(
                f"The gateway {gateway} runs on this database, or was killed within "
                f"{LEASE.total_seconds():.0f} s: stop all gateways, and wait if one was killed."
            )
        for table in contents.backed_up_tables():
            if await session.scalar(select(func.count()).select_from(table)):
                raise RestoreRefused(
                    f"The deployment is not empty: it has rows in {table.name}. Restore into a new "
                    "database; what an audit log holds is never removed."
                )

    def _put(self, digest: str, folder: Path) -> None:
        report = examine(folder, None)
        checkpoint = Checkpoint(
            directory=folder,
            config=report.config,
            digest=digest,
            rank=report.rank,
            num_bytes=report.num_bytes,
            modules=report.modules,
        )
        self._store.put(checkpoint, read_profile(folder))

    async def _fill(self, session: AsyncSession, folder: Path, manifest: Manifest) -> None:
        # The fingerprint was compared with the manifest's, so this is the backup's secret.
        await confirm_secret(session, self._secret)
        parts = {part.name: part for part in manifest.tables}
        for table in contents.backed_up_tables():
            rows = verifying.rows(folder, table, parts[table.name])
            await self._insert(session, table, rows)
        await _void_budgets(session, self._now)
        await _cancel_uploads(session, self._now)
        detail = {"taken_at": manifest.taken_at.isoformat(), "program": manifest.program}
        act = Act(audit.CLI, self._now)
        await audit.append(session, act, None, "deployment.restore", "deployment", detail)

    async def _insert(
        self, session: AsyncSession, table: Table, rows: Iterable[dict[str, Any]]
    ) -> None:
        rows, number = iter(rows), 0
        while batch := list(islice(rows, BATCH_ROWS)):
            await session.execute(insert(table), batch)
            number += len(batch)
            if number % TOLD_ROWS == 0:
                self._progress(f"{table.name}: {number} rows")
        await _continue_numbers(session, table)


async def _check_revision(session: AsyncSession, manifest: Manifest) -> None:
    own = (await session.scalars(text("SELECT version_num FROM alembic_version"))).one()
    if manifest.revision != own:
        raise RestoreRefused(
            f"The backup's tables are of revision {manifest.revision}, this version's of {own}. "
            f"Restore it with version {manifest.program}, and then migrate with this one."
        )
    if {part.name for part in manifest.tables} != {t.name for t in contents.backed_up_tables()}:
        raise RestoreRefused(
            f"The backup has other tables than this version. Use version {manifest.program}."
        )


async def _lock(session: AsyncSession) -> None:
    """Let nobody write until the transaction ends; on SQLite nobody else does anyway."""
    if session.get_bind().dialect.name == "postgresql":
        names = ", ".join(f'"{table.name}"' for table in Base.metadata.sorted_tables)
        await session.execute(text(f"LOCK TABLE {names} IN EXCLUSIVE MODE"))


async def _continue_numbers(session: AsyncSession, table: Table) -> None:
    """Let PostgreSQL number the next row after those that brought their numbers."""
    column = table.autoincrement_column
    if column is None or session.get_bind().dialect.name != "postgresql":
        return
    sequence = func.pg_get_serial_sequence(f'"{table.name}"', column.name)
    newest = select(func.max(column)).scalar_subquery()
    await session.execute(select(func.setval(sequence, newest)))


async def _void_budgets(session: AsyncSession, now: datetime) -> None:
    """Give each budget, also one that was first used after the backup, an epoch that no copy of it
    in a shared store can have."""
    since_1970_ms = int(now.timestamp() * 1000)
    await session.execute(update(BudgetEpoch).values(epoch=BudgetEpoch.epoch + since_1970_ms))
    newest = await session.scalar(select(func.max(BudgetEpoch.epoch)))
    await session.execute(update(Deployment).values(first_epoch=max(newest or 0, since_1970_ms)))


async def _cancel_uploads(session: AsyncSession, now: datetime) -> None:
    """What had come of them lies on the disk of another machine."""
    is_open = AdapterUpload.status.in_(OPEN)
    await session.execute(
        update(AdapterUpload).where(is_open).values(status="cancelled", updated_at=now)
    )
