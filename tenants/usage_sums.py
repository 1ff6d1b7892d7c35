"""Sums over the ledger, exact whatever they come to."""

from collections.abc import Set
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import RowMapping, Select, SQLColumnExpression, func, literal, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.dialects import Unit, start_of
from loraplex.tenants.ledger import UsageFilter
from loraplex.tenants.tables import Tenant, UsageRow

GroupBy = Literal["tenant", "project", "key", "model", "hour", "day"]

_SPLIT = 10**9
"""Costs are summed as two parts below 10¹⁰, so that no sum of 64 bits overflows in the database,
and put together here, where integers have no end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSum:
    """Usage of one group; None where it was not grouped by that."""

    tenant: str | None
    """Its name."""
    project_id: str | None
    key_id: str | None
    model: str | None
    since: datetime | None
    """Start of the hour or day, in UTC."""
    currency: str | None
    """Sums never mix currencies; None where there was no price."""
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_pico: int


async def sum_usage(
    session: AsyncSession,
    asked: UsageFilter,
    by: Set[GroupBy] = frozenset(),
    limit: int | None = None,
) -> list[UsageSum]:
    """Sum records by currency and what else is asked for: the first `limit` groups, in order."""
    groups: dict[str, SQLColumnExpression[Any]] = {}
    if "tenant" in by:
        groups["tenant"] = Tenant.name
    if "project" in by:
        groups["project_id"] = UsageRow.project_id
    if "key" in by:
        groups["key_id"] = UsageRow.key_id
    if "model" in by:
        groups["model"] = UsageRow.model
    if "hour" in by or "day" in by:
        unit: Unit = "hour" if "hour" in by else "day"
        groups["since"] = start_of(session, unit, UsageRow.accepted_at)
    groups["currency"] = UsageRow.currency
    query: Select[*tuple[Any, ...]] = (
        select(
            *(column.label(name) for name, column in groups.items()),
            func.count().label("requests"),
            func.sum(UsageRow.prompt_tokens).label("prompt_tokens"),
            func.sum(UsageRow.cached_tokens).label("cached_tokens"),
            func.sum(UsageRow.completion_tokens).label("completion_tokens"),
            func.sum(UsageRow.cost_pico // literal(_SPLIT)).label("high"),
            func.sum(UsageRow.cost_pico % literal(_SPLIT)).label("low"),
        )
        .select_from(UsageRow)
        .join(Tenant, Tenant.id == UsageRow.tenant_id)
        .where(*asked.conditions())
        .group_by(*groups.values())
        .order_by(*groups.values())
        .limit(limit)
    )
    return [_sum(row) for row in (await session.execute(query)).mappings()]


def _sum(row: RowMapping) -> UsageSum:
    since = row.get("since")
    return UsageSum(
        tenant=row.get("tenant"),
        project_id=row.get("project_id"),
        key_id=row.get("key_id"),
        model=row.get("model"),
        since=None if since is None else datetime.fromisoformat(since).replace(tzinfo=UTC),
        currency=row["currency"],
        requests=row["requests"],
        # PostgreSQL adds 64-bit numbers to a decimal.
        prompt_tokens=int(row["prompt_tokens"]),
        cached_tokens=int(row["cached_tokens"]),
        completion_tokens=int(row["completion_tokens"]),
        cost_pico=int(row["high"]) * _SPLIT + int(row["low"]),
    )
