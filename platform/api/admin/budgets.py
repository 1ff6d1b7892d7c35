"""`/admin/v1/tenants/{tenant}/budget-adjustments`: what a month's budget has used, corrected."""

from datetime import datetime
from typing import Annotated, Literal, Self

import fastapi
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.platform.api.bodies import Schema, parse_exactly, request_body_of
from loraplex.platform.api.limit_routes import OWNERS
from loraplex.platform.api.owner import ResourceOwner, tenant_owns
from loraplex.platform.api.paging import Listing, Page, View, listing
from loraplex.platform.api.repeatable import Post
from loraplex.platform.deps import ServicesOf, body_of
from loraplex.platform.permissions import operator_may
from loraplex.tenants import budget_adjustments, directory
from loraplex.tenants.budget_adjustments import Adjustment, AdjustmentRecord
from loraplex.tenants.budgets import Budget, BudgetUse
from loraplex.tenants.ids import Entropy

router = APIRouter(tags=["limits"])
_PATH = "/admin/v1/tenants/{tenant}/budget-adjustments"
Owner = Annotated[ResourceOwner, Depends(tenant_owns)]


class ResetBody(Schema):
    """The budget of this month that is to begin anew."""

    scope: Literal["tenant", "project", "key", "adapter"]
    named: str = ""
    """Name or id of the project, id of the key, name of the adapter; nothing for the tenant."""
    dimension: Literal["tokens_per_month", "cost_micros_per_month"]
    reason: str


class AdjustmentBody(ResetBody):
    """What is added to a budget's use in this month, or taken off it."""

    amount: int
    """In the dimension's unit; negative gives budget back."""


class AdjustmentView(BaseModel):
    """A budget after an adjustment."""

    object: Literal["budget.adjustment"] = "budget.adjustment"
    scope: str
    scope_id: str
    dimension: str
    period_start: datetime
    period_end: datetime
    amount: int
    reason: str
    spent: int
    reserved: int
    """By open requests, at most."""

    @classmethod
    def of(cls, budget: Budget, amount: int, reason: str, use: BudgetUse) -> Self:
        """Show it."""
        return cls(
            scope=budget.scope,
            scope_id=budget.scope_id,
            dimension=budget.dimension,
            period_start=budget.period_start,
            period_end=budget.period_end,
            amount=amount,
            reason=reason,
            spent=use.spent,
            reserved=sum(use.reserved.values()),
        )


class PastAdjustmentView(View):
    """An adjustment that was made, and by whom."""

    object: Literal["budget.adjustment"] = "budget.adjustment"
    scope: str
    scope_id: str
    dimension: str
    period_start: datetime
    amount: int
    reason: str
    actor: str
    created_at: datetime

    @classmethod
    def of(cls, record: AdjustmentRecord) -> Self:
        """Show it."""
        return cls(
            id=record.id,
            scope=record.scope,
            scope_id=record.scope_id,
            dimension=record.dimension,
            period_start=record.period_start,
            amount=record.amount,
            reason=record.reason,
            actor=record.actor,
            created_at=record.created_at,
        )


@router.get(_PATH, dependencies=[operator_may("limits.read")])
async def list_budget_adjustments(
    owner: Owner, services: ServicesOf, page: Annotated[Page, fastapi.Query()]
) -> Listing[PastAdjustmentView]:
    """List all adjustments of a tenant's budgets, of what it has too, oldest first."""
    async with services.resources.database.reader() as session:
        found = await budget_adjustments.list_adjustments(session, owner.tenant_id)
    return listing([PastAdjustmentView.of(record) for record in found], page)


@router.post(
    _PATH,
    status_code=201,
    response_model=AdjustmentView,
    openapi_extra=request_body_of(AdjustmentBody),
    dependencies=[operator_may("budgets.write")],
)
async def adjust_budget(request: Request, owner: Owner, services: ServicesOf) -> Response:
    """Correct what a budget has used in this month; the ledger stays as it is."""
    asked = parse_exactly(await body_of(request), AdjustmentBody)
    act = owner.act(services)

    async def work(session: AsyncSession, entropy: Entropy) -> AdjustmentView:
        budget = await _budget(session, owner, asked, act.at)
        adjustment = Adjustment(budget, asked.amount, asked.reason)
        use = await budget_adjustments.adjust(session, adjustment, act, entropy)
        return AdjustmentView.of(budget, asked.amount, asked.reason, use)

    return await Post(request, owner.sender, services).serve(work)


@router.post(
    f"{_PATH}/reset",
    status_code=201,
    response_model=AdjustmentView,
    openapi_extra=request_body_of(ResetBody),
    dependencies=[operator_may("budgets.write")],
)
async def reset_budget(request: Request, owner: Owner, services: ServicesOf) -> Response:
    """Take off all that a budget has used in this month, but for what open requests reserve; the
    ledger stays as it is."""
    asked = parse_exactly(await body_of(request), ResetBody)
    act = owner.act(services)

    async def work(session: AsyncSession, entropy: Entropy) -> AdjustmentView:
        budget = await _budget(session, owner, asked, act.at)
        amount, use = await budget_adjustments.reset(session, budget, asked.reason, act, entropy)
        return AdjustmentView.of(budget, amount, asked.reason, use)

    return await Post(request, owner.sender, services).serve(work)


async def _budget(
    session: AsyncSession, owner: ResourceOwner, asked: ResetBody, at: datetime
) -> Budget:
    of = await OWNERS[asked.scope](session, owner, asked.named)
    tenant = await directory.get(session, owner.tenant_id)
    month = tenant.calendar.month_of(at)
    return Budget(of.tenant_id, of.scope, of.scope_id, asked.dimension, month.start, month.end)
