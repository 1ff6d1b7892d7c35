"""Which gateways run, and which deletions they do not stand in the way of.

A version that is being deleted takes no new requests: each admission notes its use first, then
reads the catalogue's number, which the statement that retired the version has raised in its
transaction, and goes by what it knows of the version only if that is as of this number
(`platform/catalogue.py`); so it is as if each had read the status itself. What is open on it is
known to the gateways alone. So each says now and then that it runs, and names the deletions that it
has cleared: it has seen that the version takes none, all requests that may have been admitted
before that are known to it, and none of them is on the version any more. When all gateways that run
have cleared a deletion, nothing can read the version, and its bytes may go.

One that was killed is not waited for: its worker has ended its requests. Nor is one that could not
reach the database for as long. It admits nothing meanwhile, for each admission asks the database
for that number, and what it admitted before is safe: requests on what is in memory go on, since
their leases keep it there; those whose adapter is still to be read get an error that says so, for
bytes are looked up by their digest, and are never others.
"""

import json
from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.registry.tables import Gateway
from loraplex.tenants.dialects import insert_unless_there

LEASE = timedelta(seconds=90)
"""A gateway that has said nothing for so long was killed; clocks of machines agree better."""


async def say_running(session: AsyncSession, gateway_id: str, now: datetime) -> None:
    """Say that a gateway runs; what it has cleared stays said."""
    values: dict[str, object] = {"id": gateway_id, "seen_at": now, "cleared": "[]"}
    await session.execute(insert_unless_there(session, Gateway, "id", **values))
    await session.execute(update(Gateway).where(Gateway.id == gateway_id).values(seen_at=now))


async def say(
    session: AsyncSession, gateway_id: str, now: datetime, cleared: Collection[str]
) -> None:
    """Say that a gateway runs, and which deletions it has cleared, by their ids."""
    await say_running(session, gateway_id, now)
    text = json.dumps(sorted(cleared))
    await session.execute(update(Gateway).where(Gateway.id == gateway_id).values(cleared=text))


async def leave(session: AsyncSession, gateway_id: str) -> None:
    """Say that a gateway has ended, and all its requests."""
    await session.execute(delete(Gateway).where(Gateway.id == gateway_id))


async def forget_killed(session: AsyncSession, now: datetime) -> None:
    """Remove what was said long ago."""
    await session.execute(delete(Gateway).where(Gateway.seen_at < now - 2 * LEASE))


async def count_running(session: AsyncSession, now: datetime) -> int:
    """Return how many gateways have said lately that they run."""
    lately = select(func.count()).select_from(Gateway).where(Gateway.seen_at >= now - LEASE)
    return await session.scalar(lately) or 0


async def is_cleared(session: AsyncSession, deletion_id: str, now: datetime) -> bool:
    """True if no gateway that runs has requests on the version of a deletion, or may have."""
    said = await session.scalars(select(Gateway.cleared).where(Gateway.seen_at >= now - LEASE))
    return all(deletion_id in json.loads(text) for text in said)
