"""Whether the audit log is whole: its chain of hashes, read from the beginning."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.audit import hash_of
from loraplex.tenants.tables import AuditEvent

BATCH_ROWS = 1000


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The newest event: whoever keeps its hash elsewhere can tell later whether it is there."""

    id: int
    hash: str
    at: datetime


@dataclass(frozen=True, slots=True)
class ChainReport:
    """What a reading of the whole log found."""

    num_events: int
    """In the chain."""
    num_before: int
    """From before the log was chained; nothing vouches for them."""
    head: str | None
    """Hash of the newest event."""
    broken_id: int | None
    """The first event that is not as it was written, or before which one is missing."""
    expected_found: bool
    """Whether the hash that was asked for is in the chain."""

    @property
    def is_whole(self) -> bool:
        """True if nothing is wrong."""
        return self.broken_id is None and self.expected_found


async def head(session: AsyncSession) -> ChainHead | None:
    """Return the newest event's place in the chain; None while there is none."""
    query = select(AuditEvent).where(AuditEvent.hash.is_not(None))
    row = await session.scalar(query.order_by(AuditEvent.id.desc()).limit(1))
    return None if row is None or row.hash is None else ChainHead(row.id, row.hash, row.at)


async def verify(session: AsyncSession, expected: str | None = None) -> ChainReport:
    """Read the log from its beginning up to the first event that is wrong. `expected` is a hash
    that was its head once, so that an end that was cut off is noticed."""
    num_events, num_before, previous, last_id = 0, 0, None, 0
    found = expected is None
    while True:
        batch = await _after(session, last_id)
        for row in batch:
            last_id = row.id
            if row.hash is None and num_events == 0:
                num_before += 1
                continue
            if row.previous_hash != previous or row.hash != hash_of(row):
                return ChainReport(num_events, num_before, previous, row.id, found)
            num_events, previous = num_events + 1, row.hash
            found = found or row.hash == expected
        if len(batch) < BATCH_ROWS:
            return ChainReport(num_events, num_before, previous, None, found)


async def _after(session: AsyncSession, last_id: int) -> list[AuditEvent]:
    query = select(AuditEvent).where(AuditEvent.id > last_id)
    rows = list(await session.scalars(query.order_by(AuditEvent.id).limit(BATCH_ROWS)))
    session.expunge_all()
    return rows
