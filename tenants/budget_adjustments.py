"""What people add to a budget's use or take off it: appended, never changed, told to the audit log.

To reset a budget is to take off all that was spent: the ledger stays as it is, and so does what was
adjusted before. Each adjustment raises the budget's epoch, so that whoever has a copy of its use
reckons it anew with the next request.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import cast

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants import audit
from loraplex.tenants.audit import Act
from loraplex.tenants.budgets import Budget, BudgetUse, raise_epochs, use_of
from loraplex.tenants.errors import ValueRefused
from loraplex.tenants.ids import Entropy, new_id
from loraplex.tenants.quota_tables import BudgetAdjustment
from loraplex.tenants.scoped_limits import Dimension, Scope

MAX_REASON_CHARS = 200
MAX_AMOUNT = 2**53 - 1
"""The largest whole number that every store of quotas counts exactly."""


@dataclass(frozen=True, slots=True)
class Adjustment:
    """What is added to a budget's use, and why."""

    budget: Budget
    amount: int
    """In the dimension's unit; negative gives budget back."""
    reason: str

    def __post_init__(self) -> None:
        if self.amount == 0 or abs(self.amount) > MAX_AMOUNT:
            raise ValueRefused(
                f"amount must be other than 0 and within ±{MAX_AMOUNT}, not {self.amount}.",
                "amount",
            )
        check_reason(self.reason)


@dataclass(frozen=True, slots=True)
class AdjustmentRecord:
    """An adjustment that was made; see the table."""

    id: str
    scope: Scope
    scope_id: str
    dimension: Dimension
    period_start: datetime
    amount: int
    reason: str
    actor: str
    created_at: datetime


def check_reason(reason: str) -> None:
    """Raise ValueRefused unless it says something, and not too much."""
    if not reason.strip() or len(reason) > MAX_REASON_CHARS:
        raise ValueRefused(
            f"reason must have 1 to {MAX_REASON_CHARS} characters, not {len(reason)}; say why the "
            "budget is adjusted.",
            "reason",
        )


async def adjust(
    session: AsyncSession, adjustment: Adjustment, act: Act, entropy: Entropy
) -> BudgetUse:
    """Append an adjustment, and return what the budget is used by after it."""
    await raise_epochs(session, [adjustment.budget])
    return await _append(session, adjustment, act, entropy)


async def reset(
    session: AsyncSession, budget: Budget, reason: str, act: Act, entropy: Entropy
) -> tuple[int, BudgetUse]:
    """Take off all that was spent; return the adjustment's amount, 0 if nothing was, and what is
    used then: what open requests reserve.

    Raises:
        ValueRefused: there is no reason, or too long a one.
    """
    check_reason(reason)
    await raise_epochs(session, [budget])
    use = await use_of(session, budget)
    if use.spent == 0:
        return 0, use
    adjustment = Adjustment(budget, -use.spent, reason)
    return adjustment.amount, await _append(session, adjustment, act, entropy)


async def list_adjustments(session: AsyncSession, tenant_id: str) -> list[AdjustmentRecord]:
    """Return the adjustments of all budgets of a tenant and of what it has, oldest first."""
    rows = await session.scalars(
        select(BudgetAdjustment)
        .where(BudgetAdjustment.tenant_id == tenant_id)
        .order_by(BudgetAdjustment.created_at, BudgetAdjustment.id)
    )
    return [
        AdjustmentRecord(
            id=row.id,
            scope=cast("Scope", row.scope),
            scope_id=row.scope_id,
            dimension=cast("Dimension", row.dimension),
            period_start=row.period_start,
            amount=row.amount,
            reason=row.reason,
            actor=row.actor,
            created_at=row.created_at,
        )
        for row in rows
    ]


async def _append(
    session: AsyncSession, adjustment: Adjustment, act: Act, entropy: Entropy
) -> BudgetUse:
    budget = adjustment.budget
    row = BudgetAdjustment(
        id=new_id("adj", act.at, entropy),
        **budget.names(),
        amount=adjustment.amount,
        reason=adjustment.reason,
        actor=act.actor.id,
        created_at=act.at,
    )
    session.add(row)
    await session.flush()
    use = await use_of(session, budget)
    detail = {
        "period_start": budget.period_start.isoformat(),
        "amount": adjustment.amount,
        "reason": adjustment.reason,
        "used": use.total,
    }
    subject = f"{budget.scope}/{budget.scope_id}/{budget.dimension}"
    await audit.append(session, act, budget.tenant_id, "budget.adjust", subject, detail)
    return use
