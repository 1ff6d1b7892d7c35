"""Who is signed in to the console: rows that all gateways read, by the hash of a cookie."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.audit import Act, Actor
from loraplex.tenants.ids import Entropy
from loraplex.tenants.people_tables import ConsoleSession, MembershipRow, PersonRow
from loraplex.tenants.roles import (
    PLATFORM_GRANTS,
    TENANT_GRANTS,
    Permission,
    Permissions,
    PlatformRole,
    TenantRole,
)
from loraplex.tenants.tables import AdminKey

LONGEST = timedelta(hours=12)
IDLE = timedelta(hours=1)
SEEN_EVERY = timedelta(minutes=1)
"""How exactly it is written down when a session was last used."""
_TOKEN_BYTES = 32
_ID_CHARS = 16


@dataclass(frozen=True, slots=True)
class SessionOwner:
    """Who signs in: a person, or whoever has an admin key."""

    person_id: str | None = None
    admin_key_id: str | None = None

    @property
    def actor(self) -> Actor:
        """How the audit log calls it."""
        if self.person_id is not None:
            return Actor("person", self.person_id)
        return Actor("admin_key", self.admin_key_id or "")


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A session that goes on, and what its owner may do now."""

    id: str
    """Names the session on pages, and opens nothing: a part of the cookie's hash."""
    owner: SessionOwner
    label: str
    """The person's name or address, or the admin key's label."""
    csrf: str
    """What forms of this session carry."""
    platform: Permissions
    """In every tenant, too."""
    tenants: Mapping[str, Permissions]
    """By the id of a tenant."""

    @property
    def actor(self) -> Actor:
        """How the audit log calls the owner."""
        return self.owner.actor

    def act(self, now: datetime) -> Act:
        """What the owner does now, for the audit log."""
        return Act(self.actor, now)

    def may(self, permission: Permission, tenant_id: str | None = None) -> bool:
        """True if the owner may do so, in the tenant or, without one, on the platform."""
        inside = self.tenants.get(tenant_id, frozenset()) if tenant_id is not None else frozenset()
        return permission in self.platform or permission in inside


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One of the sessions of the same owner."""

    id: str
    user_agent: str
    started_at: datetime
    seen_at: datetime
    ends_at: datetime


async def start(
    session: AsyncSession, owner: SessionOwner, user_agent: str, now: datetime, entropy: Entropy
) -> str:
    """Sign somebody in, and return the cookie's value, which is kept nowhere."""
    await session.execute(delete(ConsoleSession).where(_over(now)))
    cookie = entropy(_TOKEN_BYTES).hex()
    session.add(
        ConsoleSession(
            cookie_hash=_hash(cookie),
            person_id=owner.person_id,
            admin_key_id=owner.admin_key_id,
            csrf=entropy(_TOKEN_BYTES).hex(),
            user_agent="".join(c for c in user_agent if c.isprintable())[:200],
            started_at=now,
            seen_at=now,
            ends_at=now + LONGEST,
        )
    )
    await session.flush()
    return cookie


async def find(session: AsyncSession, cookie: str, now: datetime) -> SignedIn | None:
    """Return the session of a cookie, unless it is over or its owner may not sign in any more."""
    row = await session.scalar(select(ConsoleSession).where(_is(cookie), ~_over(now)))
    if row is None:
        return None
    if row.person_id is not None:
        return await _of_person(session, row, await session.get_one(PersonRow, row.person_id))
    return _of_key(row, await session.get_one(AdminKey, row.admin_key_id), now)


async def note_seen(session: AsyncSession, cookie: str, now: datetime) -> None:
    """Write that the session is in use; at most once a minute, since each page asks for it."""
    await session.execute(
        update(ConsoleSession)
        .where(_is(cookie), ConsoleSession.seen_at < now - SEEN_EVERY)
        .values(seen_at=now)
    )


async def needs_note(session: AsyncSession, cookie: str, now: datetime) -> bool:
    """True if `note_seen` would write."""
    stale = ConsoleSession.seen_at < now - SEEN_EVERY
    asked = select(ConsoleSession.cookie_hash).where(_is(cookie), stale)
    return await session.scalar(asked) is not None


async def end(session: AsyncSession, cookie: str) -> None:
    """Sign out the browser that has the cookie."""
    await session.execute(delete(ConsoleSession).where(_is(cookie)))


async def end_one(session: AsyncSession, owner: SessionOwner, session_id: str) -> None:
    """Sign the owner out at one browser; no effect if there is no such session."""
    for row in await session.scalars(select(ConsoleSession).where(_owned(owner))):
        if row.cookie_hash[:_ID_CHARS] == session_id:
            await session.delete(row)
    await session.flush()


async def end_everywhere(session: AsyncSession, owner: SessionOwner) -> None:
    """Sign the owner out at all browsers."""
    await session.execute(delete(ConsoleSession).where(_owned(owner)))


async def end_all(session: AsyncSession, person_id: str) -> None:
    """Sign a person out at all browsers."""
    await end_everywhere(session, SessionOwner(person_id=person_id))


async def list_of(session: AsyncSession, owner: SessionOwner, now: datetime) -> list[SessionRecord]:
    """Return the owner's sessions that go on, the one used last first."""
    rows = await session.scalars(
        select(ConsoleSession)
        .where(_owned(owner), ~_over(now))
        .order_by(ConsoleSession.seen_at.desc(), ConsoleSession.cookie_hash)
    )
    return [
        SessionRecord(
            id=row.cookie_hash[:_ID_CHARS],
            user_agent=row.user_agent,
            started_at=row.started_at,
            seen_at=row.seen_at,
            ends_at=row.ends_at,
        )
        for row in rows
    ]


async def _of_person(
    session: AsyncSession, row: ConsoleSession, person: PersonRow
) -> SignedIn | None:
    if person.status != "active":
        return None
    platform: Permissions = frozenset()
    tenants: dict[str, Permissions] = {}
    held = select(MembershipRow).where(MembershipRow.person_id == person.id)
    for membership in await session.scalars(held):
        if membership.tenant_id is None:
            platform |= PLATFORM_GRANTS[cast("PlatformRole", membership.role)]
        else:
            tenants[membership.tenant_id] = TENANT_GRANTS[cast("TenantRole", membership.role)]
    label = person.name or person.email
    owner = SessionOwner(person_id=person.id)
    return SignedIn(row.cookie_hash[:_ID_CHARS], owner, label, row.csrf, platform, tenants)


def _of_key(row: ConsoleSession, key: AdminKey, now: datetime) -> SignedIn | None:
    if key.revoked_at is not None or (key.expires_at is not None and key.expires_at <= now):
        return None
    owner = SessionOwner(admin_key_id=key.id)
    platform = PLATFORM_GRANTS[cast("PlatformRole", key.role)]
    return SignedIn(row.cookie_hash[:_ID_CHARS], owner, key.label or key.id, row.csrf, platform, {})


def _owned(owner: SessionOwner) -> ColumnElement[bool]:
    if owner.person_id is not None:
        return ConsoleSession.person_id == owner.person_id
    return ConsoleSession.admin_key_id == owner.admin_key_id


def _over(now: datetime) -> ColumnElement[bool]:
    return (ConsoleSession.ends_at <= now) | (ConsoleSession.seen_at <= now - IDLE)


def _is(cookie: str) -> ColumnElement[bool]:
    return ConsoleSession.cookie_hash == _hash(cookie)


def _hash(cookie: str) -> str:
    return hashlib.sha256(cookie.encode()).hexdigest()
