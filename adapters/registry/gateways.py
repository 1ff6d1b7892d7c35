"""Which gateways run, and which deletions they do not stand in the way of.

A version that is being deleted takes no new requests, since each admission reads its status; what
is open on it is known to the gateways alone. So each says now and then that it runs, and names the
deletions that it has cleared: it has seen that the version takes none, all requests that may have
been admitted before that are known to it, and none of them is on the version any more. When all
gateways that run have cleared a version, nothing can read it, and its bytes may go. One that was
killed is not waited for: its worker has ended its requests.
"""

import json
from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.registry.tables import Gateway

LEASE = timedelta(seconds=90)
"""A gateway that has said nothing for so long was killed; clocks of machines agree better."""


async def say(
    session: AsyncSession, gateway_id: str, now: datetime, cleared: Collection[int]
) -> None:
    """Say that a gateway runs, and which versions it has cleared."""
    text = json.dumps(sorted(cleared))
    await session.merge(Gateway(id=gateway_id, seen_at=now, cleared=text))


async def leave(session: AsyncSession, gateway_id: str) -> None:
    """Say that a gateway has ended, and all its requests."""
    await session.execute(delete(Gateway).where(Gateway.id == gateway_id))


async def forget_killed(session: AsyncSession, now: datetime) -> None:
    """Remove what was said long ago."""
    await session.execute(delete(Gateway).where(Gateway.seen_at < now - 2 * LEASE))


async def is_cleared(session: AsyncSession, version_id: int, now: datetime) -> bool:
    """True if no gateway that runs has requests on a version that is being deleted, or may have."""
    said = await session.scalars(select(Gateway.cleared).where(Gateway.seen_at >= now - LEASE))
    return all(version_id in json.loads(text) for text in said)
