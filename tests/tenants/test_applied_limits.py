"""The limits of one request: of every scope, with the platform's where the tenant has none."""

import secrets
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from loraplex.tenants import directory
from loraplex.tenants.applied_limits import limits_of, policies_of
from loraplex.tenants.db import Database
from loraplex.tenants.limits import Limits, TenantLimits
from loraplex.tenants.periods import Calendar
from loraplex.tenants.quota_tables import LimitPolicy

NOW = datetime(2026, 11, 30, 15, tzinfo=UTC)
DEFAULTS = Limits(requests_per_minute=60, tokens_per_minute=6000, concurrency=4)


async def test_a_request_has_the_limits_of_all_that_it_belongs_to(database_url: str) -> None:
    database = Database.open(database_url)
    async with database.session() as session:
        own = TenantLimits(concurrency=7)
        tenant = await directory.create(session, "acme", NOW, secrets.token_bytes, limits=own)
        for scope, scope_id, dimension, value in (
            ("key", "key_a", "input_tokens_per_minute", 100),
            ("key", "key_b", "input_tokens_per_minute", 1),
            ("project", "prj_a", "tokens_per_month", 10**6),
            ("adapter", "support", "requests_per_minute", 9),
            ("adapter", "other", "requests_per_minute", 1),
        ):
            session.add(
                LimitPolicy(
                    id=f"lim_{scope_id}",
                    tenant_id=tenant.id,
                    scope=scope,
                    scope_id=scope_id,
                    dimension=dimension,
                    value=value,
                    burst=250 if scope_id == "key_a" else None,
                    mode="shadow" if scope == "adapter" else "enforce",
                    on_store_loss="closed" if scope == "key" else None,
                    updated_at=NOW,
                )
            )
    async with database.reader() as session:
        stored = await policies_of(session, tenant.id, "prj_a", "key_a", "support")
        on_base = await policies_of(session, tenant.id, "prj_a", "key_a", None)
    limits = limits_of(stored, DEFAULTS, tenant.id, Calendar(ZoneInfo("Asia/Tokyo")), NOW)
    assert [(each.name, each.value, each.burst) for each in limits] == [
        ("tenant/requests_per_minute", 60, 60),
        ("tenant/tokens_per_minute", 6000, 6000),
        ("tenant/concurrency", 7, 7),
        ("project/tokens_per_month", 10**6, 10**6),
        ("key/input_tokens_per_minute", 100, 250),
        ("adapter/requests_per_minute", 9, 9),
    ]
    assert [each.mode for each in limits][-2:] == ["enforce", "shadow"]
    assert [each.on_store_loss for each in limits][-3:] == ["local", "closed", "local"]
    budgets = [each.budget for each in limits if each.budget is not None]
    assert [budget.period.start for budget in budgets] == [datetime(2026, 11, 30, 15, tzinfo=UTC)]
    assert {each.scope for each in on_base} == {"tenant", "project", "key"}
    await database.close()
