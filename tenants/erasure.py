"""What is taken away of a tenant that is deleted: people, labels, limits, hashes of keys.

Rows that the ledger points at stay, with ids in the place of names. The ledger and the audit log
are never changed: what they said of the tenant's models and acts, they say for ever.
"""

from datetime import datetime

from sqlalchemy import Delete, Update, delete, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.people_tables import ConsoleSession, MembershipRow, PersonRow
from loraplex.tenants.quota_tables import LimitPolicy
from loraplex.tenants.tables import ApiKey, IdempotencyRow, Project, Tenant


async def erase(session: AsyncSession, tenant: Tenant, now: datetime) -> None:
    """Take it all away, and free the tenant's name."""
    await _lock(session, tenant.id)
    keys = select(ApiKey.id).where(ApiKey.tenant_id == tenant.id)
    people = list(
        await session.scalars(
            select(MembershipRow.person_id).where(MembershipRow.tenant_id == tenant.id)
        )
    )
    for statement in (
        delete(MembershipRow).where(MembershipRow.tenant_id == tenant.id),
        *_without_memberships(people),
        delete(LimitPolicy).where(LimitPolicy.tenant_id == tenant.id),
        delete(IdempotencyRow).where(IdempotencyRow.owner.in_(keys)),
        update(Project)
        .where(Project.tenant_id == tenant.id)
        .values(name=Project.id, models=None, status="archived"),
        update(ApiKey)
        .where(ApiKey.tenant_id == tenant.id)
        .values(
            label="",
            key_hash="",
            previous_hash=None,
            permissions=None,
            models=None,
            addresses=None,
            revoked_at=func.coalesce(ApiKey.revoked_at, now),
        ),
    ):
        await session.execute(statement.execution_options(synchronize_session=False))
    # No slug: no tenant can be named so.
    tenant.name, tenant.status, tenant.deleted_at = tenant.id, "deleted", now
    await session.flush()


async def _lock(session: AsyncSession, tenant_id: str) -> None:
    """Lock keys and projects before anything raises the catalogue's number, whose row is locked by
    that: whoever changes a key or a project takes them in this order, too."""
    for table in (ApiKey, Project):
        query = select(table.id).where(table.tenant_id == tenant_id).order_by(table.id)
        await session.execute(query.with_for_update(key_share=True))


def _without_memberships(people: list[str]) -> tuple[Delete | Update, ...]:
    """Whoever belonged to this tenant alone is forgotten."""
    nowhere = (
        select(PersonRow.id)
        .where(PersonRow.id.in_(people), ~exists().where(MembershipRow.person_id == PersonRow.id))
        .scalar_subquery()
    )
    return (
        delete(ConsoleSession).where(ConsoleSession.person_id.in_(nowhere)),
        delete(PersonRow).where(PersonRow.id.in_(nowhere)),
    )
