"""Which limits stand above which: a key's below its project's, all others below the tenant's."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from sqlalchemy import ColumnElement, Select, and_, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.errors import ExceedsParent
from loraplex.tenants.limits import Limits
from loraplex.tenants.quota_tables import LimitPolicy
from loraplex.tenants.scoped_limits import Dimension, Scope
from loraplex.tenants.tables import ApiKey


@dataclass(frozen=True, slots=True)
class LimitOwner:
    """Whom limits are of."""

    tenant_id: str
    scope: Scope
    scope_id: str
    """Id of the tenant, project or key; an adapter's name."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The least that stands above a limit."""

    whose: str
    value: int
    burst: int


async def ceilings(
    session: AsyncSession, owner: LimitOwner, dimension: Dimension, defaults: Limits
) -> list[Ceiling]:
    """Return what stands above a limit, the nearest first; the platform's default where the tenant
    has none of its own. Nothing stands above a tenant's."""
    if owner.scope == "tenant":
        return []
    above = await _owners_above(session, owner)
    rows = await session.scalars(
        select(LimitPolicy).where(
            LimitPolicy.tenant_id == owner.tenant_id,
            LimitPolicy.dimension == dimension,
            or_(*(_is_of(one) for one in above)),
        )
    )
    by_scope = {row.scope: row for row in rows}
    found = [
        Ceiling(f"the {one.scope}", by_scope[one.scope].value, _burst(by_scope[one.scope]))
        for one in above
        if one.scope in by_scope
    ]
    default = getattr(defaults, dimension, None)
    if "tenant" not in by_scope and default is not None:
        found.append(Ceiling("the platform", default, default))
    return found


def check_below(dimension: Dimension, value: int, burst: int, above: Iterable[Ceiling]) -> None:
    """Check a limit against what stands above it.

    Raises:
        ExceedsParent: it is more; the message has what stands above.
    """
    for ceiling in above:
        if value > ceiling.value:
            raise ExceedsParent(
                f"value: {ceiling.whose} has {ceiling.value} {dimension}, so this cannot be "
                f"{value}.",
                "value",
            )
        if burst > ceiling.burst:
            raise ExceedsParent(
                f"burst: {ceiling.whose} has a burst of {ceiling.burst} {dimension}, so this "
                f"cannot be {burst}.",
                "burst",
            )


async def check_key_limits_within(
    session: AsyncSession, tenant_id: str, key_id: str, project_id: str
) -> None:
    """Check a key's limits against those of a project that it moves to.

    Raises:
        ExceedsParent: one is more.
    """
    of_key = LimitOwner(tenant_id, "key", key_id)
    of_project = LimitOwner(tenant_id, "project", project_id)
    theirs = {row.dimension: row for row in await session.scalars(_limits_of(of_project))}
    for row in await session.scalars(_limits_of(of_key)):
        parent = theirs.get(row.dimension)
        if parent is not None:
            above = Ceiling("the project", parent.value, _burst(parent))
            check_below(cast("Dimension", row.dimension), row.value, _burst(row), (above,))


async def _owners_above(session: AsyncSession, owner: LimitOwner) -> list[LimitOwner]:
    tenant = LimitOwner(owner.tenant_id, "tenant", owner.tenant_id)
    if owner.scope != "key":
        return [tenant]
    project_id = await session.scalar(
        select(ApiKey.project_id).where(
            ApiKey.id == owner.scope_id, ApiKey.tenant_id == owner.tenant_id
        )
    )
    return [LimitOwner(owner.tenant_id, "project", project_id or ""), tenant]


def _limits_of(owner: LimitOwner) -> Select[LimitPolicy]:
    return select(LimitPolicy).where(LimitPolicy.tenant_id == owner.tenant_id, _is_of(owner))


def _is_of(owner: LimitOwner) -> ColumnElement[bool]:
    return and_(LimitPolicy.scope == owner.scope, LimitPolicy.scope_id == owner.scope_id)


def _burst(row: LimitPolicy) -> int:
    return row.value if row.burst is None else row.burst
