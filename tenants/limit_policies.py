"""Limits as they are stored: one row per limit of a tenant, project, key or adapter."""

import hashlib
from collections.abc import Collection
from datetime import datetime

from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.dialects import insert_unless_there
from loraplex.tenants.quota_tables import LimitPolicy
from loraplex.tenants.scoped_limits import Dimension

TENANT_DIMENSIONS: tuple[Dimension, ...] = (
    "requests_per_minute",
    "tokens_per_minute",
    "concurrency",
)
"""Those that the tenant's own record shows."""
_NAMED = ("tenant_id", "scope", "scope_id", "dimension")
"""Columns that tell limits apart."""


def policy_id(tenant_id: str, scope: str, scope_id: str, dimension: str) -> str:
    """Return the id of a limit, which follows from what it limits."""
    named = "\0".join((tenant_id, scope, scope_id, dimension))
    return f"lim_{hashlib.sha256(named.encode()).hexdigest()[:32]}"


async def tenant_values(session: AsyncSession, tenant_id: str) -> dict[str, int]:
    """Return the tenant's own limits of TENANT_DIMENSIONS, by dimension."""
    return (await values_of_tenants(session, [tenant_id])).get(tenant_id, {})


async def values_of_tenants(
    session: AsyncSession, tenant_ids: Collection[str]
) -> dict[str, dict[str, int]]:
    """Return `tenant_values` of those tenants that have any, by tenant."""
    rows = await session.scalars(
        select(LimitPolicy).where(
            LimitPolicy.tenant_id.in_(tenant_ids),
            LimitPolicy.scope == "tenant",
            LimitPolicy.dimension.in_(TENANT_DIMENSIONS),
        )
    )
    values: dict[str, dict[str, int]] = {}
    for row in rows:
        values.setdefault(row.tenant_id, {})[row.dimension] = row.value
    return values


async def find(
    session: AsyncSession, tenant_id: str, scope: str, scope_id: str, dimension: str
) -> LimitPolicy | None:
    """Return the row of a limit, locked; None if there is none."""
    named = _is_named(tenant_id, scope, scope_id, dimension)
    return await session.scalar(select(LimitPolicy).where(*named).with_for_update())


async def find_or_add(
    session: AsyncSession,
    tenant_id: str,
    scope: str,
    scope_id: str,
    dimension: str,
    value: int,
    now: datetime,
) -> tuple[LimitPolicy, bool]:
    """Return the row of a limit, locked, and whether it is a new one, which has the value: of those
    who set the same limit at once, one adds it and the others change it."""
    named = dict(zip(_NAMED, (tenant_id, scope, scope_id, dimension), strict=True))
    is_new = False
    while (row := await find(session, **named)) is None:
        added = {"id": policy_id(**named), "value": value, "mode": "enforce", "updated_at": now}
        insert = insert_unless_there(session, LimitPolicy, *_NAMED, **named, **added)
        is_new = await session.scalar(insert.returning(LimitPolicy.id)) is not None
    return row, is_new


def _is_named(
    tenant_id: str, scope: str, scope_id: str, dimension: str
) -> tuple[ColumnElement[bool], ...]:
    return (
        LimitPolicy.tenant_id == tenant_id,
        LimitPolicy.scope == scope,
        LimitPolicy.scope_id == scope_id,
        LimitPolicy.dimension == dimension,
    )
