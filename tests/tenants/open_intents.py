"""Intents and budgets for the tests of this folder and of the platform."""

from dataclasses import replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from loraplex.tenants.intents import Intent
from loraplex.tenants.ledger import UsageRecord
from loraplex.tenants.periods import month_of
from loraplex.tenants.projects import default_project_id
from loraplex.tenants.scoped_limits import BudgetPeriod, Dimension, Scope, ScopedLimit

LEASE = timedelta(seconds=60)


def make_intent(tenant_id: str, key_id: str, request_id: str, now: datetime) -> Intent:
    """An intent of at most 30 tokens and 30 micros."""
    return Intent(
        request_id=request_id,
        tenant_id=tenant_id,
        project_id=default_project_id(tenant_id),
        key_id=key_id,
        gateway_id="gtw_a",
        requested_model="acme/support",
        model="acme/support@3",
        adapter_digest="d" * 64,
        price_id=None,
        prompt_tokens=10,
        max_output_tokens=20,
        max_cost_pico=29_000_001,
        accepted_at=now,
        lease_until=now + LEASE,
        service_tier="flex",
    )


def usage_of(intent: Intent, completion_tokens: int, cost_pico: int = 0) -> UsageRecord:
    """What a request that was opened used."""
    return UsageRecord(
        request_id=intent.request_id,
        tenant_id=intent.tenant_id,
        project_id=intent.project_id,
        key_id=intent.key_id,
        requested_model=intent.requested_model,
        model=intent.model,
        adapter_digest=intent.adapter_digest,
        prompt_tokens=intent.prompt_tokens,
        cached_tokens=0,
        completion_tokens=completion_tokens,
        finish_reason="stop",
        accepted_at=intent.accepted_at,
        first_token_at=intent.accepted_at,
        finished_at=intent.accepted_at,
        queue_ms=0.0,
        cost_pico=cost_pico,
    )


def budget_limit(
    scope: Scope,
    scope_id: str,
    now: datetime,
    value: int = 100,
    dimension: Dimension = "tokens_per_month",
    epoch: int = 0,
) -> ScopedLimit:
    """A budget of the month that has `now`, in UTC."""
    period = BudgetPeriod(month_of(now, ZoneInfo("UTC")), epoch)
    return ScopedLimit(scope, scope_id, dimension, value, value, budget=period)


def at_epoch(limit: ScopedLimit, epoch: int) -> ScopedLimit:
    """The same budget as of another reckoning."""
    assert limit.budget is not None
    return replace(limit, budget=replace(limit.budget, epoch=epoch))


async def nothing_new() -> tuple[ScopedLimit, ...]:
    """Limits that have changed, in a test where none does."""
    raise AssertionError
