"""How limits stand now, for those who ask: a key, its owner, an operator. Nothing is taken."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants import api_keys, applied_limits, budgets
from loraplex.tenants.budgets import Budget
from loraplex.tenants.db import Database
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.errors import BudgetExhausted, QuotaBackendUnavailable, QuotaExceeded
from loraplex.tenants.limits import Limits
from loraplex.tenants.quotas import Quotas
from loraplex.tenants.reservations import Hold, Reservation
from loraplex.tenants.scoped_limits import ScopedLimit
from loraplex.tenants.standings import Standing
from loraplex.tenants.tables import ApiKey


@dataclass(frozen=True, slots=True)
class LimitStanding:
    """How one limit stands, beside those that stand above it."""

    limit: ScopedLimit
    used: int
    """In the dimension's unit; of a rate, what has not drained yet."""
    remaining: int
    """What fits now, ≥ 0, as far as this limit goes."""
    parent_remaining: int | None
    """The least that is left of limits of the same dimension that stand above it and are enforced;
    None if there are none."""
    resets_at: datetime | None
    """When all of it is free again; None of what is open at a time, which ends with others."""
    reset_s: int | None
    """The same from now on, rounded up."""

    @property
    def available(self) -> int:
        """What is really left: the least of its own remainder and its parents'."""
        if self.parent_remaining is None:
            return self.remaining
        return min(self.remaining, self.parent_remaining)


@dataclass(frozen=True, slots=True)
class Subject:
    """Requests whose limits are asked for: all of a tenant's, or those of a project, of a key, on
    an adapter."""

    project_id: str | None = None
    key_id: str | None = None
    adapter: str | None = None
    """Its name."""


async def limits_of(
    session: AsyncSession, tenant: TenantRecord, subject: Subject, defaults: Limits, now: datetime
) -> tuple[ScopedLimit, ...]:
    """Return the limits that such requests are admitted by, `defaults` where the tenant has none;
    a key's include its project's.

    Raises:
        KeyNotFound: the tenant has no such key.
    """
    project_id = subject.project_id or ""
    if subject.key_id is not None:
        project_id = (await api_keys.get_key(session, tenant.id, subject.key_id)).project_id
    policies = await applied_limits.policies_of(
        session, tenant.id, project_id, subject.key_id or "", subject.adapter
    )
    return applied_limits.limits_of(policies, defaults, tenant.id, tenant.calendar, now)


async def all_limits_of(
    session: AsyncSession, tenant: TenantRecord, defaults: Limits, now: datetime
) -> tuple[tuple[ScopedLimit, ...], frozenset[ScopedLimit]]:
    """Return all limits of a tenant and of what it has, and which of them are the platform's."""
    policies = await applied_limits.all_policies_of(session, tenant.id)
    limits = applied_limits.limits_of(policies, defaults, tenant.id, tenant.calendar, now)
    return limits, frozenset(limits[: len(limits) - len(policies)])


async def limit_standings(
    quotas: Quotas,
    database: Database,
    tenant_id: str,
    limits: Sequence[ScopedLimit],
    now: datetime,
) -> tuple[LimitStanding, ...]:
    """Return how limits of a tenant stand, in their order; budgets' epochs are found here.

    Those that nobody counts, while the store is away, are left out. What the store does not know of
    a budget is summed up in the database.

    Raises:
        QuotaBackendUnavailable: the store of quotas does not answer.
    """
    current = await _of_current_epochs(database, tenant_id, limits)
    known = {each.limit: each for each in await quotas.standings(tenant_id, current)}
    for limit in current:
        if limit not in known and limit.budget is not None:
            known[limit] = await _summed_up(database, tenant_id, limit)
    found = [known[limit] for limit in current if limit in known]
    projects = await _projects_of_keys(database, found)
    return tuple(_beside_parents(each, found, projects, now) for each in found)


async def reserve(quotas: Quotas, asked: Reservation) -> Hold:
    """As `Quotas.reserve`; a refusal by a limit tells how all of them stand."""
    try:
        return await quotas.reserve(asked)
    except (QuotaExceeded, BudgetExhausted) as refusal:
        with suppress(QuotaBackendUnavailable):
            refusal.standings = await quotas.standings(asked.tenant_id, asked.limits)
        raise


async def _of_current_epochs(
    database: Database, tenant_id: str, limits: Sequence[ScopedLimit]
) -> list[ScopedLimit]:
    wanted = {limit: Budget.of(tenant_id, limit) for limit in limits if limit.budget is not None}
    if not wanted:
        return list(limits)
    async with database.reader() as session:
        epochs = await budgets.epochs_of(session, wanted.values())
    return [
        budgets.with_epoch(limit, epochs.get(wanted[limit], 0)) if limit in wanted else limit
        for limit in limits
    ]


async def _summed_up(database: Database, tenant_id: str, limit: ScopedLimit) -> Standing:
    async with database.reader() as session:
        use = await budgets.use_of(session, Budget.of(tenant_id, limit))
    return Standing(limit, used=use.total, remaining=limit.value - use.total, reset_s=0.0)


async def _projects_of_keys(database: Database, found: Sequence[Standing]) -> Mapping[str, str]:
    """By the ids of those keys that have limits here."""
    key_ids = {each.limit.scope_id for each in found if each.limit.scope == "key"}
    if not key_ids:
        return {}
    async with database.reader() as session:
        rows = await session.execute(
            select(ApiKey.id, ApiKey.project_id).where(ApiKey.id.in_(key_ids))
        )
    return {row.id: row.project_id for row in rows}


def _beside_parents(
    standing: Standing, found: Sequence[Standing], projects: Mapping[str, str], now: datetime
) -> LimitStanding:
    limit = standing.limit
    above = [
        max(0, other.remaining)
        for other in found
        if other.limit.dimension == limit.dimension
        and other.limit.mode == "enforce"
        and _is_above(other.limit, limit, projects)
    ]
    resets_at = None
    if limit.budget is not None:
        resets_at = limit.budget.period.end
    elif limit.kind == "rate":
        resets_at = now + timedelta(seconds=standing.reset_s)
    return LimitStanding(
        limit=limit,
        used=standing.used,
        remaining=max(0, standing.remaining),
        parent_remaining=min(above, default=None),
        resets_at=resets_at,
        reset_s=None if resets_at is None else math.ceil((resets_at - now).total_seconds()),
    )


def _is_above(parent: ScopedLimit, limit: ScopedLimit, projects: Mapping[str, str]) -> bool:
    """A key's stands below its project's, all below the tenant's."""
    if parent.scope == "project":
        return limit.scope == "key" and projects.get(limit.scope_id) == parent.scope_id
    return parent.scope == "tenant" and limit.scope != "tenant"
