"""Writes usage to the ledger: all records that wait at a time in one transaction."""

import asyncio
import logging
from asyncio import Future, Task
from dataclasses import dataclass

from sqlalchemy.exc import InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from loraplex.tenants.db import Database
from loraplex.tenants.ledger import UsageRecord, append

_log = logging.getLogger(__name__)

OUTAGES = (OperationalError, InterfaceError, InternalError, PoolTimeout)
"""Errors of a database that is away, locked or cannot be written; they say nothing of a record."""
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 5.0


@dataclass(frozen=True, slots=True)
class _Entry:
    """A record, and who waits for it."""

    record: UsageRecord
    written: Future[None]


class LedgerWriter:
    """One writer per process; SQLite has one at a time anyway, and commits cost more than rows."""

    def __init__(self, database: Database) -> None:
        self._database = database
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
        entry = _Entry(record, asyncio.get_running_loop().create_future())
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
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
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
            for entry in batch:
                await append(session, entry.record)
        for entry in batch:
            if not entry.written.done():  # whoever waited was cancelled
                entry.written.set_result(None)
