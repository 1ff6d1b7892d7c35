"""The limits that one request is admitted by: the platform's, its tenant's, project's, key's and
adapter's, as they are stored, and as they are at a time."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, cast, get_args

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.limits import Limits
from loraplex.tenants.periods import Calendar
from loraplex.tenants.quota_tables import LimitPolicy
from loraplex.tenants.scoped_limits import (
    KINDS,
    BudgetPeriod,
    Dimension,
    Mode,
    OnStoreLoss,
    Scope,
    ScopedLimit,
)

_UNKNOWN_EPOCH = 0
"""No reckoning has it: whoever admits knows the budget's epoch, or has it reckoned."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A stored limit."""

    scope: Scope
    scope_id: str
    dimension: Dimension
    value: int
    burst: int | None
    mode: Mode
    on_store_loss: OnStoreLoss | None


async def policies_of(
    session: AsyncSession, tenant_id: str, project_id: str, key_id: str, adapter: str | None
) -> tuple[Policy, ...]:
    """Return what is stored for a request of the key on the tenant's adapter of this name; None is
    the base model. By scope, the tenant's first."""
    subjects = {"tenant": tenant_id, "project": project_id, "key": key_id}
    if adapter is not None:
        subjects["adapter"] = adapter
    of_any = (
        (LimitPolicy.scope == scope) & (LimitPolicy.scope_id == scope_id)
        for scope, scope_id in subjects.items()
    )
    query = select(LimitPolicy).where(LimitPolicy.tenant_id == tenant_id, or_(*of_any))
    found = [_policy(row) for row in await session.scalars(query) if row.dimension in KINDS]
    order = list(subjects)
    return tuple(sorted(found, key=lambda each: (order.index(each.scope), each.dimension)))


async def all_policies_of(session: AsyncSession, tenant_id: str) -> tuple[Policy, ...]:
    """Return all that is stored of the tenant: its own, its projects', keys' and adapters'."""
    query = select(LimitPolicy).where(LimitPolicy.tenant_id == tenant_id)
    found = [_policy(row) for row in await session.scalars(query) if row.dimension in KINDS]
    order = get_args(Scope)
    return tuple(
        sorted(found, key=lambda each: (order.index(each.scope), each.scope_id, each.dimension))
    )


def limits_of(
    policies: tuple[Policy, ...], defaults: Limits, tenant_id: str, calendar: Calendar, at: datetime
) -> tuple[ScopedLimit, ...]:
    """Return the limits that hold at a time: those that are stored, and the platform's where a
    tenant has none of the dimension. Budgets are of the month that the tenant's calendar has then,
    and of no epoch yet."""
    own = {each.dimension for each in policies if each.scope == "tenant"}
    given: tuple[tuple[Dimension, int], ...] = (
        ("requests_per_minute", defaults.requests_per_minute),
        ("tokens_per_minute", defaults.tokens_per_minute),
        ("concurrency", defaults.concurrency),
    )
    of_platform = (
        ScopedLimit("tenant", tenant_id, dimension, value, value)
        for dimension, value in given
        if dimension not in own
    )
    has_budget = any(KINDS[each.dimension] == "budget" for each in policies)
    budget = BudgetPeriod(calendar.month_of(at), _UNKNOWN_EPOCH) if has_budget else None
    return (*of_platform, *(_limit(each, budget) for each in policies))


def _limit(policy: Policy, budget: BudgetPeriod | None) -> ScopedLimit:
    kind = KINDS[policy.dimension]
    return ScopedLimit(
        scope=policy.scope,
        scope_id=policy.scope_id,
        dimension=policy.dimension,
        value=policy.value,
        burst=policy.burst if kind == "rate" and policy.burst is not None else policy.value,
        mode=policy.mode,
        on_store_loss=policy.on_store_loss or "local",
        budget=budget if kind == "budget" else None,
    )


def _policy(row: LimitPolicy) -> Policy:
    return Policy(
        scope=cast("Scope", row.scope),
        scope_id=row.scope_id,
        dimension=cast("Dimension", row.dimension),
        value=row.value,
        burst=row.burst,
        mode=cast("Literal['enforce', 'shadow']", row.mode),
        on_store_loss=cast("OnStoreLoss | None", row.on_store_loss),
    )
