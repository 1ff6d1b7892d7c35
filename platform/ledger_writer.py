"""Writes usage to the ledger, and removes intents: all that wait at a time in one transaction."""

import asyncio
import logging
from asyncio import Future, Task
from dataclasses import dataclass

from sqlalchemy.exc import InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from loraplex.tenants import intents
from loraplex.tenants.db import Database
from loraplex.tenants.errors import UsageConflict
from loraplex.tenants.leases import MAX_BACKOFF_S
from loraplex.tenants.ledger import UsageRecord, append_all

_log = logging.getLogger(__name__)

OUTAGES = (OperationalError, InterfaceError, InternalError, PoolTimeout)
"""Errors of a database that is away, locked or cannot be written; they say nothing of a record."""
MIN_BACKOFF_S = 0.1


@dataclass(frozen=True, slots=True)
class _Entry:
    """What becomes of a request's intent, and who waits for it."""

    request_id: str
    record: UsageRecord | None
    """None where nothing is owed."""
    written: Future[None]


class LedgerWriter:
    """One writer per process; SQLite has one at a time anyway, and commits cost more than rows."""

    def __init__(self, database: Database, max_backoff_s: float = MAX_BACKOFF_S) -> None:
        """`max_backoff_s` is the longest pause between attempts while the database is away."""
        self._database = database
        self._max_backoff_s = max_backoff_s
        self._waiting: list[_Entry] = []
        self._writing: Task[None] | None = None
        self._failing = False

    @property
    def failing(self) -> bool:
        """True from a failed attempt to write until one succeeds."""
        return self._failing

    async def append(self, record: UsageRecord) -> None:
        """Return when the record is committed, however long the database is away before that.

        A caller that cannot wait so long is cancelled; the record is written all the same if the
        database comes back in this process's life. Raises what `ledger.append` does, and what the
        database says of the record itself.
        """
        await self._put(record.request_id, record)

    async def void(self, request_id: str) -> None:
        """Return when the intent of a request that owes nothing is removed; else as `append`."""
        await self._put(request_id, None)

    async def _put(self, request_id: str, record: UsageRecord | None) -> None:
        entry = _Entry(request_id, record, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_waiting(), name="write-ledger")
        await entry.written

    async def _write_waiting(self) -> None:
        """Write until nothing waits. In an outage all wait together for the next attempt, so that
        it costs the database one connection, however many they are."""
        backoff_s = MIN_BACKOFF_S
        while batch := self._take():
            try:
                await self._write(batch)
            except OUTAGES as error:
                self._failing = True
                self._waiting = [*batch, *self._waiting]
                _log.warning(
                    "the ledger cannot be written; tried again in %s s: %s", backoff_s, error
                )
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, self._max_backoff_s)
            else:
                self._failing, backoff_s = False, MIN_BACKOFF_S

    def _take(self) -> list[_Entry]:
        """All records that wait, without those whose fate was told before an outage."""
        waiting, self._waiting = self._waiting, []
        return [each for each in waiting if not each.written.done() or each.written.cancelled()]

    async def _write(self, batch: list[_Entry]) -> None:
        """Commit the batch or, where a record cannot be written, the others. Raises OUTAGES."""
        try:
            await self._commit(batch)
        except OUTAGES:
            raise
        except Exception as error:  # noqa: BLE001  whoever waits for the record gets it
            if len(batch) > 1:
                for entry in batch:
                    await self._write([entry])
            elif not batch[0].written.done():
                batch[0].written.set_exception(error)

    async def _commit(self, batch: list[_Entry]) -> None:
        async with self._database.session() as session:
            # First, since whoever settles for others locks the intent before it writes.
            await intents.close(session, [entry.request_id for entry in batch])
            records = [entry.record for entry in batch if entry.record is not None]
            fates = await append_all(session, records) if records else []
        conflicts = {
            record.request_id: fate
            for record, fate in zip(records, fates, strict=True)
            if isinstance(fate, UsageConflict)
        }
        for entry in batch:
            if entry.written.done():  # whoever waited was cancelled
                continue
            if entry.record is not None and entry.request_id in conflicts:
                entry.written.set_exception(conflicts[entry.request_id])
            else:
                entry.written.set_result(None)
