"""What is needed to settle a request for somebody else."""

from collections.abc import Iterable

from sqlalchemy import select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.budgets import stored_limit
from loraplex.tenants.intents import Intent, subjects_of
from loraplex.tenants.ledger import UsageRecord
from loraplex.tenants.money import micros_rounded_up
from loraplex.tenants.periods import Calendar
from loraplex.tenants.quota_tables import BudgetEpoch
from loraplex.tenants.reservations import Amounts, Hold, Reservation
from loraplex.tenants.tables import PriceRow, Tenant


def used_by(record: UsageRecord | None, slots: int = 1) -> Amounts:
    """Return what a request that has ended counts against limits; None: nothing of it ran.

    What nobody pays for counts as a request and no more.
    """
    if record is None or not record.billable:
        return Amounts(0, 0, 0, slots=slots)
    cost_micros = micros_rounded_up(record.cost_pico)
    return Amounts(record.prompt_tokens, record.completion_tokens, cost_micros, slots=slots)


async def currencies(session: AsyncSession, intents: Iterable[Intent]) -> dict[str, str]:
    """Return the currencies of the prices of intents, by the prices' ids."""
    ids = {intent.price_id for intent in intents if intent.price_id is not None}
    if not ids:
        return {}
    rows = await session.execute(select(PriceRow.id, PriceRow.currency).where(PriceRow.id.in_(ids)))
    return dict(rows.all())


async def hold_of(session: AsyncSession, intent: Intent) -> Hold:
    """Return a hold of the intent's request that names the budgets it counts in: enough to settle
    it in a store, whoever reserved it there."""
    tenant = await session.get_one(Tenant, intent.tenant_id)
    calendar = Calendar.parse(tenant.time_zone, tenant.earlier_time_zones)
    period = calendar.month_of(intent.accepted_at)
    rows = await session.scalars(
        select(BudgetEpoch).where(
            BudgetEpoch.tenant_id == intent.tenant_id,
            BudgetEpoch.period_start == period.start,
            tuple_(BudgetEpoch.scope, BudgetEpoch.scope_id).in_(subjects_of(intent, tenant.name)),
        )
    )
    limits = tuple(stored_limit(row, period) for row in rows)
    worst = Amounts(
        input_tokens=intent.prompt_tokens,
        output_tokens=intent.max_output_tokens,
        cost_micros=micros_rounded_up(intent.max_cost_pico),
    )
    asked = Reservation(intent.request_id, intent.tenant_id, limits, worst)
    return Hold(reservation=asked, standings=())
