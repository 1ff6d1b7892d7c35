"""What an attempt to sign in elsewhere must find again, whichever gateway it comes back to."""

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.people_tables import SignInState

KEPT = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Begun:
    """An attempt that was begun; nothing in it opens anything."""

    browser: str
    """A digest of what the browser has."""
    redirect_uri: str
    following: str
    """Path to go to in the end."""


async def keep(session: AsyncSession, state: str, begun: Begun, now: datetime) -> None:
    """Keep an attempt for ten minutes."""
    await session.execute(delete(SignInState).where(SignInState.ends_at <= now))
    session.add(SignInState(key=_key(state), data=json.dumps(asdict(begun)), ends_at=now + KEPT))
    await session.flush()


async def take(session: AsyncSession, state: str, now: datetime) -> Begun | None:
    """Take an attempt, which nobody else gets then; None if there is none, or its time is over."""
    taken = (
        delete(SignInState)
        .where(SignInState.key == _key(state))
        .returning(SignInState.data, SignInState.ends_at)
    )
    found = (await session.execute(taken)).one_or_none()
    return None if found is None or found.ends_at <= now else Begun(**json.loads(found.data))


def _key(state: str) -> str:
    return hashlib.sha256(state.encode()).hexdigest()
