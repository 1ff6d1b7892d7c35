"""What bounds a key that gives something besides its scopes: its limits, and its project's.

A child without its parent's limits would be a way around them, and so would many children that have
each the same. So a key that is limited makes none.
"""

from sqlalchemy import ColumnElement, and_, exists, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.errors import ExceedsParent
from loraplex.tenants.key_scopes import Grantor
from loraplex.tenants.quota_tables import LimitPolicy
from loraplex.tenants.tables import ApiKey


async def check_unlimited(session: AsyncSession, grantor: Grantor, tenant_id: str) -> None:
    """Refuse to let a key that has limits of its own give what has none.

    Raises:
        ExceedsParent: it has.
    """
    if grantor.key_id is None:
        return
    if await session.scalar(select(exists().where(_enforced(tenant_id, "key", grantor.key_id)))):
        raise ExceedsParent(
            "Your key has limits of its own, which what it gives would not have; use another key.",
            "limits",
        )


async def check_project(
    session: AsyncSession, grantor: Grantor, tenant_id: str, project_id: str
) -> None:
    """Refuse to let a key leave a project that has limits which it could not change.

    Raises:
        ExceedsParent: it would.
    """
    if grantor.key_id is None or "limits.write" in grantor.permissions:
        return
    own = await session.scalar(select(ApiKey.project_id).where(ApiKey.id == grantor.key_id))
    if own is None or own == project_id:
        return
    if await session.scalar(select(exists().where(_enforced(tenant_id, "project", own)))):
        raise ExceedsParent(
            "project: your key's project has limits, so that your key makes keys in it alone.",
            "project",
        )


def _enforced(tenant_id: str, scope: str, scope_id: str) -> ColumnElement[bool]:
    return and_(
        LimitPolicy.tenant_id == tenant_id,
        LimitPolicy.scope == scope,
        LimitPolicy.scope_id == scope_id,
        LimitPolicy.mode == "enforce",
    )
