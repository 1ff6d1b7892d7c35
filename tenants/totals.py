"""Sums over the ledger and the keys, for people who look at many requests at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, and_, case, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.tables import ApiKey, UsageRow


@dataclass(frozen=True, slots=True)
class TenantTotal:
    """What one tenant used since some time."""

    requests: int
    tokens: int
    """Prompt and output."""
    last_at: datetime


@dataclass(frozen=True, slots=True)
class ModelTotal:
    """What one model was used for in one period."""

    period: int
    """Index of the period."""
    model: str
    """As resolved, with its version."""
    requests: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


async def totals_by_tenant(session: AsyncSession, since: datetime) -> dict[str, TenantTotal]:
    """Return, by tenant id, the sums of all requests accepted at `since` or later."""
    query = (
        select(
            UsageRow.tenant_id,
            func.count(),
            func.sum(UsageRow.prompt_tokens + UsageRow.completion_tokens),
            func.max(UsageRow.accepted_at),
        )
        .where(UsageRow.accepted_at >= since)
        .group_by(UsageRow.tenant_id)
    )
    rows = await session.execute(query)
    return {tenant: TenantTotal(count, tokens, last) for tenant, count, tokens, last in rows}


async def totals_by_model(
    session: AsyncSession, tenant_id: str, bounds: Sequence[datetime]
) -> list[ModelTotal]:
    """Return the tenant's sums by period and model; period i is [bounds[i], bounds[i + 1])."""
    period = _period(bounds)
    query = (
        select(
            period,
            UsageRow.model,
            func.count(),
            func.count().filter(UsageRow.finish_reason == "error"),
            func.sum(UsageRow.prompt_tokens),
            func.sum(UsageRow.cached_tokens),
            func.sum(UsageRow.completion_tokens),
        )
        .where(
            UsageRow.tenant_id == tenant_id,
            UsageRow.accepted_at >= bounds[0],
            UsageRow.accepted_at < bounds[-1],
        )
        .group_by(period, UsageRow.model)
        .order_by(period, UsageRow.model)
    )
    return [ModelTotal(*row) for row in await session.execute(query)]


async def active_keys_by_tenant(session: AsyncSession, now: datetime) -> dict[str, int]:
    """Return, by tenant id, how many keys open the door at the time `now`."""
    query = (
        select(ApiKey.tenant_id, func.count())
        .where(
            ApiKey.revoked_at.is_(None), or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > now)
        )
        .group_by(ApiKey.tenant_id)
    )
    return {tenant: count for tenant, count in await session.execute(query)}


def _period(bounds: Sequence[datetime]) -> ColumnElement[int]:
    """Return the index of a row's period; databases do not agree on what a date is."""
    at = UsageRow.accepted_at
    pairs = zip(bounds[:-1], bounds[1:], strict=True)
    return case(*((and_(at >= start, at < end), i) for i, (start, end) in enumerate(pairs)))
