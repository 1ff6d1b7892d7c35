"""Budgets that were ever reckoned: those that a store may know."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.budgets import Budget, stored_limit
from loraplex.tenants.periods import Calendar
from loraplex.tenants.quota_tables import BudgetEpoch, LimitPolicy
from loraplex.tenants.scoped_limits import Dimension, Scope, ScopedLimit
from loraplex.tenants.tables import Tenant

_LONGEST_MONTH = timedelta(days=32)
BudgetName = tuple[Scope, str, Dimension, datetime]
"""Of one tenant: scope, its id, dimension, and when the period starts."""


@dataclass(frozen=True, slots=True)
class KnownBudget:
    """A budget as of its last reckoning; its limit says nothing of what it allows."""

    budget: Budget
    limit: ScopedLimit
    tenant: str
    """Its name."""

    @property
    def name(self) -> str:
        """How it is told to people: `acme, project prj_1, tokens_per_month`."""
        return f"{self.tenant}, {self.limit.scope} {self.limit.scope_id}, {self.limit.dimension}"


async def known_budgets(session: AsyncSession, now: datetime) -> list[KnownBudget]:
    """Return those of the month that is now and of limits that are set, by tenant; of others copies
    are not kept up."""
    rows = await session.execute(
        select(BudgetEpoch, Tenant)
        .join(Tenant, Tenant.id == BudgetEpoch.tenant_id)
        .join(LimitPolicy, and_(*_same_budget()))
        .where(BudgetEpoch.period_start > now - _LONGEST_MONTH, BudgetEpoch.epoch > 0)
        .order_by(Tenant.name, BudgetEpoch.scope, BudgetEpoch.scope_id, BudgetEpoch.dimension)
    )
    found = []
    for row, tenant in rows:
        period = _calendar(tenant).month_of(now)
        if period.start != row.period_start:
            continue
        limit = stored_limit(row, period)
        found.append(KnownBudget(Budget.of(row.tenant_id, limit), limit, tenant.name))
    return found


async def tenants_with_budgets(session: AsyncSession, now: datetime) -> list[str]:
    """Return the ids of tenants that have known budgets of this month or the last one."""
    query = (
        select(BudgetEpoch.tenant_id)
        .where(BudgetEpoch.period_start > now - 2 * _LONGEST_MONTH, BudgetEpoch.epoch > 0)
        .distinct()
        .order_by(BudgetEpoch.tenant_id)
    )
    return list(await session.scalars(query))


async def named_budgets(
    session: AsyncSession, tenant_id: str, names: Collection[BudgetName]
) -> list[ScopedLimit]:
    """Return those of a tenant's budgets that are known, whatever their month."""
    tenant = await session.get(Tenant, tenant_id)
    if tenant is None or not names:
        return []
    columns = (BudgetEpoch.scope, BudgetEpoch.scope_id, BudgetEpoch.dimension)
    named = tuple_(*columns, BudgetEpoch.period_start).in_(names)
    rows = await session.scalars(
        select(BudgetEpoch).where(BudgetEpoch.tenant_id == tenant_id, named)
    )
    calendar = _calendar(tenant)
    return [stored_limit(row, calendar.month_of(row.period_start)) for row in rows]


def _calendar(tenant: Tenant) -> Calendar:
    return Calendar.parse(tenant.time_zone, tenant.earlier_time_zones)


def _same_budget() -> list[ColumnElement[bool]]:
    names = ("tenant_id", "scope", "scope_id", "dimension")
    return [getattr(LimitPolicy, name) == getattr(BudgetEpoch, name) for name in names]
