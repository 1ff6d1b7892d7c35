"""Writes usage to the ledger: all records that wait at a time in one transaction."""

import asyncio
from asyncio import Future, Task

from loraplex.tenants.db import Database
from loraplex.tenants.ledger import UsageRecord, append


class LedgerWriter:
    """One writer per process; SQLite has one at a time anyway, and commits cost more than rows."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[tuple[UsageRecord, Future[None]]] = []
        self._writing: Task[None] | None = None

    async def append(self, record: UsageRecord) -> None:
        """Return when the record is committed. Raises what `ledger.append` and the database do."""
        written: Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((record, written))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_waiting())
        await written

    async def _write_waiting(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            if not await self._committed(batch) and len(batch) > 1:
                # One that cannot be written must not take the others with it.
                for entry in batch:
                    await self._committed([entry])

    async def _committed(self, batch: list[tuple[UsageRecord, Future[None]]]) -> bool:
        try:
            async with self._database.session() as session:
                for record, _ in batch:
                    await append(session, record)
        except Exception as error:  # noqa: BLE001  whoever waits for the record gets it
            if len(batch) == 1:
                _tell(batch[0][1], error)
            return False
        for _, written in batch:
            _tell(written, None)
        return True


def _tell(written: Future[None], error: Exception | None) -> None:
    if written.done():  # whoever waited was cancelled
        return
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)
