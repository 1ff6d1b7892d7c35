"""What the database forgets, and when; the audit log and open intents never go.

- Usage goes after the days that the settings name, if they name some, by whole billing periods;
  never that of a month that may still be billed: the running one and the one before, in any zone.
  From when on it is whole is noted before the first row goes, so that no export takes a rest for
  all.
- Answers of repeatable POSTs go 24 hours after these were claimed.
- Sessions of the console, and sign-ins that nobody came back from, go when they have ended.

Rows go in small transactions, so that nobody waits long for them; whoever else forgets at the same
time waits, and finds nothing left.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, delete, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from loraplex.tenants import idempotency
from loraplex.tenants.columns import Base
from loraplex.tenants.db import Database
from loraplex.tenants.dialects import insert_unless_there, lock_text
from loraplex.tenants.people_tables import ConsoleSession, SignInState
from loraplex.tenants.tables import IdempotencyRow, UsageRetention, UsageRow

BATCH_ROWS = 2000
MOST_AHEAD, MOST_BEHIND = timedelta(hours=14), timedelta(hours=12)
"""By which months of other zones begin before UTC's, and after them."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How many rows went."""

    usage: int
    idempotency: int
    sessions: int


def usage_kept_from(now: datetime, usage_days: int) -> datetime:
    """Return the begin of the first billing period that is kept, whatever the days are."""
    running = _begin_of_month(now.astimezone(UTC) - MOST_BEHIND)
    last = _begin_of_month(running - timedelta(days=1))
    kept_from = min(now.astimezone(UTC) - timedelta(days=usage_days), last - MOST_AHEAD)
    return _begin_of_month(kept_from)


async def usage_is_whole_from(session: AsyncSession) -> datetime | None:
    """Return the time from which on no usage was removed; None if none ever was."""
    return await session.scalar(select(UsageRetention.kept_from))


async def forget(database: Database, now: datetime, usage_days: int | None) -> Forgotten:
    """Remove what is over. `usage_days` None keeps all usage."""
    usage = 0
    if usage_days is not None:
        kept_from = usage_kept_from(now, usage_days)
        await _note(database, kept_from)
        is_over = UsageRow.accepted_at < kept_from
        usage = await _remove(database, UsageRow, (UsageRow.id,), is_over)
    answers = await _remove(
        database,
        IdempotencyRow,
        (IdempotencyRow.owner, IdempotencyRow.key),
        IdempotencyRow.claimed_at < now - idempotency.KEPT,
    )
    sessions = await _remove(
        database, ConsoleSession, (ConsoleSession.cookie_hash,), ConsoleSession.ends_at < now
    )
    await _remove(database, SignInState, (SignInState.key,), SignInState.ends_at < now)
    return Forgotten(usage, answers, sessions)


async def _note(database: Database, kept_from: datetime) -> None:
    async with database.session() as session:
        row = {"id": 1, "kept_from": kept_from}
        await session.execute(insert_unless_there(session, UsageRetention, "id", **row))
        is_behind = UsageRetention.kept_from < kept_from
        await session.execute(update(UsageRetention).where(is_behind).values(kept_from=kept_from))


def _begin_of_month(at: datetime) -> datetime:
    return at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


async def _remove(
    database: Database,
    table: type[Base],
    key: tuple[InstrumentedAttribute[int] | InstrumentedAttribute[str], ...],
    is_over: ColumnElement[bool],
) -> int:
    number = 0
    while True:
        async with database.session() as session:
            await lock_text(session, "retention")
            rows = (await session.execute(select(*key).where(is_over).limit(BATCH_ROWS))).all()
            named = tuple_(*key).in_([tuple(row) for row in rows])
            await session.execute(delete(table).where(named))
        number += len(rows)
        if len(rows) < BATCH_ROWS:
            return number
