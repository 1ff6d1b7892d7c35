"""Writes intents: all that wait at a time in one transaction, before their requests run.

No tenant waits for another one's budgets. What needs sums, since the store of quotas is away, or
has to wait until somebody else has summed up, is written beside the others, by tenant.
"""

import asyncio
from asyncio import Future, Task
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from loraplex.platform.ledger_writer import OUTAGES
from loraplex.tenants import intents
from loraplex.tenants.db import Database
from loraplex.tenants.intents import Opening, Refusal

MAX_BATCH = 256
"""Intents of one transaction, so that the first of many does not wait for all."""
MAX_BESIDE = 4
"""Transactions beside the common one, which leaves connections to others."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else has locked the budgets of this opening; nothing was written."""


Answer = Refusal | Busy | None
Commit = Callable[[list[Opening]], Awaitable[list[Answer]]]


@dataclass(frozen=True, slots=True)
class _Entry:
    """An intent, and who waits for it."""

    opening: Opening
    written: Future[Answer]


class _Lane:
    """Intents that are written one batch after the other."""

    def __init__(self, commit: Commit) -> None:
        """`commit` writes those of one transaction."""
        self._commit = commit
        self._waiting: list[_Entry] = []
        self._writing: Task[None] | None = None

    async def open(self, opening: Opening) -> Answer:
        """See `IntentWriter.open`."""
        entry = _Entry(opening, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_waiting(), name="write-intents")
        return await entry.written

    async def _write_waiting(self) -> None:
        while self._waiting:
            taken, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
            batch = [entry for entry in taken if not entry.written.cancelled()]
            if batch:
                await self._write(batch)

    async def _write(self, batch: list[_Entry]) -> None:
        try:
            answers = await self._commit([entry.opening for entry in batch])
        except Exception as error:  # noqa: BLE001  whoever waits gets it
            if len(batch) > 1 and not isinstance(error, OUTAGES):
                for entry in batch:  # what the database says of one holds for that one alone
                    await self._write([entry])
                return
            for entry in batch:
                if not entry.written.done():
                    entry.written.set_exception(error)
            return
        for entry, answer in zip(batch, answers, strict=True):
            if not entry.written.done():  # whoever waited was cancelled
                entry.written.set_result(answer)


class IntentWriter:
    """One writer per process: a commit costs more than the rows in it.

    Unlike usage, which waits for a database that is away, an intent fails at once: its request has
    not run, and may be refused.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._common = _Lane(self._write_free)
        self._beside: WeakValueDictionary[str, _Lane] = WeakValueDictionary()
        self._turns = asyncio.Semaphore(MAX_BESIDE)

    async def open(self, opening: Opening) -> Refusal | None:
        """Return None when the intent is durable, or why it was not written.

        Raises what the database does; then it may have been written all the same, and whoever
        finds its lease over removes it.
        """
        if not opening.unchecked:
            answer = await self._common.open(opening)
            if not isinstance(answer, Busy):
                return answer
        lane = self._beside.setdefault(opening.intent.tenant_id, _Lane(self._write_beside))
        answer = await lane.open(opening)
        assert not isinstance(answer, Busy)
        return answer

    async def _write_free(self, openings: list[Opening]) -> list[Answer]:
        """Write those whose budgets nobody has locked."""
        async with self._database.session() as session:
            is_free = await intents.lock_free(session, openings)
            free = [each for each, free in zip(openings, is_free, strict=True) if free]
            written = iter(await intents.open_all(session, free))
            return [next(written) if free else Busy() for free in is_free]

    async def _write_beside(self, openings: list[Opening]) -> list[Answer]:
        """Write those of one tenant, however long its budgets take."""
        async with self._turns, self._database.session() as session:
            return [*await intents.open_all(session, openings)]
