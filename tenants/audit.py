"""What somebody did, told once and for ever: events are appended, and read; nothing else.

Each event has a hash over itself and the hash before it, so none can be changed, removed or put in
later without all that follow. The database refuses to change or delete one, too.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Literal

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.dialects import lock_text
from loraplex.tenants.errors import ValueRefused
from loraplex.tenants.roles import ALL, Permission, Permissions
from loraplex.tenants.tables import AuditEvent

MAX_ID = 2**63 - 1
_TOLD = "audit events of this transaction"
ActorKind = Literal["api_key", "admin_key", "person", "cli", "platform"]


@dataclass(frozen=True, slots=True)
class Actor:
    """Who does something."""

    kind: ActorKind
    id: str
    """Of the key or the person; `cli` or `platform`."""
    request_id: str | None = None
    """In which request, if it is one."""


CLI = Actor("cli", "cli")
"""Whoever has a shell and the database."""
PLATFORM = Actor("platform", "platform")
"""What the platform does by itself, such as the end of a deletion."""


@dataclass(frozen=True, slots=True)
class Act:
    """Who does something, and when."""

    actor: Actor
    at: datetime


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An event as it stands in the log."""

    id: int
    at: datetime
    actor: str
    """Its id; the kind and the request are told where the event is younger than these columns."""
    actor_kind: str | None
    request_id: str | None
    tenant_id: str | None
    action: str
    subject: str
    detail: dict[str, object]


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which events are wanted; None takes all."""

    tenant_id: str | None = None
    action: str | None = None
    """The action, or a beginning of it that ends before a dot: `adapter.alias`."""
    subject: str | None = None
    """The same for what it was done to, that ends before `@` or `:`: `acme/support`."""
    since: datetime | None = None
    until: datetime | None = None
    reader: Permissions = ALL
    """What whoever asks may: of keys and people none hear who may not read them."""


_TOLD_TO: Mapping[Permission, tuple[str, ...]] = MappingProxyType(
    {"keys.read": ("key", "admin_key"), "people.read": ("person", "member")}
)
"""Whose actions are told to whom."""


async def append(
    session: AsyncSession,
    act: Act,
    tenant_id: str | None,
    action: str,
    subject: str,
    detail: Mapping[str, object] | None = None,
) -> None:
    """Tell what is done in this transaction, which tells it exactly if it is done: `seal` writes
    it, last of all."""
    event = AuditEvent(
        at=act.at,
        actor=act.actor.id,
        actor_kind=act.actor.kind,
        request_id=act.actor.request_id,
        tenant_id=tenant_id,
        action=action,
        subject=subject[:200],
        detail=json.dumps(detail or {}, ensure_ascii=False),
    )
    session.info.setdefault(_TOLD, []).append(event)


async def seal(session: AsyncSession) -> None:
    """Write what was told in this transaction to the end of the chain; nothing may follow but the
    commit.

    One transaction at a time holds the end. It comes last, so whoever holds it waits for nobody.
    """
    told: list[AuditEvent] = session.info.pop(_TOLD, [])
    if not told:
        return
    await session.flush()
    await lock_text(session, "end of the audit log")
    newest = select(AuditEvent.hash).order_by(AuditEvent.id.desc()).limit(1)
    previous = await session.scalar(newest)
    for event in told:
        event.previous_hash = previous
        event.hash = previous = hash_of(event)
        session.add(event)
        await session.flush()


def hash_of(event: AuditEvent) -> str:
    """Return SHA-256 of an event and of the hash before it, in hex."""
    fields = (
        event.previous_hash,
        event.at.astimezone(UTC).isoformat(timespec="microseconds"),
        event.actor,
        event.actor_kind,
        event.request_id,
        event.tenant_id,
        event.action,
        event.subject,
        event.detail,
    )
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


async def find_events(
    session: AsyncSession, wanted: AuditFilter, limit: int, after_id: str | None = None
) -> list[AuditRecord]:
    """Return the newest `limit` events, or the newest before the one of id `after_id`.

    Raises:
        ValueRefused: `after_id` is no id of an event.
    """
    query = select(AuditEvent).order_by(AuditEvent.id.desc()).limit(limit)
    if after_id is not None:
        query = query.where(AuditEvent.id < _number(after_id))
    if wanted.tenant_id is not None:
        query = query.where(AuditEvent.tenant_id == wanted.tenant_id)
    if wanted.action is not None:
        inside = AuditEvent.action.startswith(f"{wanted.action}.", autoescape=True)
        query = query.where((AuditEvent.action == wanted.action) | inside)
    if wanted.subject is not None:
        starts = AuditEvent.subject.startswith
        version, alias = (starts(f"{wanted.subject}{sign}", autoescape=True) for sign in "@:")
        query = query.where((AuditEvent.subject == wanted.subject) | version | alias)
    if wanted.since is not None:
        query = query.where(AuditEvent.at >= wanted.since)
    if wanted.until is not None:
        query = query.where(AuditEvent.at < wanted.until)
    for permission, nouns in _TOLD_TO.items():
        if permission not in wanted.reader:
            starts = AuditEvent.action.startswith
            theirs = [starts(f"{noun}.") for noun in nouns]
            query = query.where(~or_(*theirs))
    found = [_record(row) for row in await session.scalars(query)]
    return found if "people.read" in wanted.reader else [_without_person(one) for one in found]


def _without_person(record: AuditRecord) -> AuditRecord:
    by_person = record.actor_kind == "person"
    return replace(record, actor="person") if by_person else record


def _number(after_id: str) -> int:
    is_number = after_id.isascii() and after_id.isdecimal() and len(after_id) <= len(str(MAX_ID))
    if not is_number or int(after_id) > MAX_ID:
        raise ValueRefused(f"after: no event has the id {after_id[:80]!r}.", "after")
    return int(after_id)


def _record(row: AuditEvent) -> AuditRecord:
    return AuditRecord(
        id=row.id,
        at=row.at,
        actor=row.actor,
        actor_kind=row.actor_kind,
        request_id=row.request_id,
        tenant_id=row.tenant_id,
        action=row.action,
        subject=row.subject,
        detail=json.loads(row.detail),
    )
