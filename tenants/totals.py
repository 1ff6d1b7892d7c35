"""What all tenants have and use, at a glance."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.tables import ApiKey, UsageRow


@dataclass(frozen=True, slots=True)
class TenantTotal:
    """What one tenant used since some time."""

    requests: int
    tokens: int
    """Prompt and output."""
    last_at: datetime


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


async def active_keys_by_tenant(session: AsyncSession, now: datetime) -> dict[str, int]:
    """Return, by tenant id, how many keys open the door at the time `now`."""
    query = (
        select(ApiKey.tenant_id, func.count())
        .where(
            ApiKey.revoked_at.is_(None), or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > now)
        )
        .group_by(ApiKey.tenant_id)
    )
    return dict((await session.execute(query)).all())
