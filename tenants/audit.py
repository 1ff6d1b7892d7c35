"""What somebody did, told once and for ever: events are appended, and read; nothing else."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.errors import ValueRefused
from loraplex.tenants.tables import AuditEvent

CLI = "cli"
"""The actor of whoever has a shell and the database."""
PLATFORM = "platform"
"""The actor of what the platform does by itself, such as the end of a deletion."""
MAX_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Act:
    """Who does something, and when."""

    actor: str
    """Id of a tenant's key or of an admin key, `cli` or `platform`."""
    at: datetime


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An event as it stands in the log."""

    id: int
    at: datetime
    actor: str
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


async def append(
    session: AsyncSession,
    act: Act,
    tenant_id: str | None,
    action: str,
    subject: str,
    detail: Mapping[str, object] | None = None,
) -> None:
    """Tell what is done in this transaction, which tells it exactly if it is done."""
    session.add(
        AuditEvent(
            at=act.at,
            actor=act.actor,
            tenant_id=tenant_id,
            action=action,
            subject=subject[:200],
            detail=json.dumps(detail or {}, ensure_ascii=False),
        )
    )
    await session.flush()


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
    return [_record(row) for row in await session.scalars(query)]


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
        tenant_id=row.tenant_id,
        action=row.action,
        subject=row.subject,
        detail=json.loads(row.detail),
    )
