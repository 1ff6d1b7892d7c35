"""What a month's budget is used by, as the database knows it, and which reckoning of it counts.

Use of a budget = what was charged for requests that were accepted in its period + what open intents
may come to + adjustments. A store (`quotas.py`) keeps a copy, to be fast. Each reckoning raises the
budget's epoch under the lock of its row, and only then reads the sums; whoever writes an intent
reads the epoch under a lock that this one waits for, and writes none if the copy that admitted it
has another. So no request slips between two reckonings, and a lost or stale copy can be reckoned
anew at any time: it is replaced, never added to.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, cast

from sqlalchemy import (
    ColumnElement,
    Select,
    String,
    func,
    literal,
    null,
    select,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.dialects import insert_unless_there
from loraplex.tenants.periods import Period
from loraplex.tenants.quota_tables import BudgetAdjustment, BudgetEpoch, IntentRow
from loraplex.tenants.reservations import Reckoning
from loraplex.tenants.scoped_limits import BudgetPeriod, Dimension, Scope, ScopedLimit
from loraplex.tenants.tables import Deployment, Tenant, UsageRow

PICO_PER_MICRO = 1_000_000
_SPLIT = 10**9
"""Amounts are summed in two parts, so that no sum of 64 bits overflows in the database."""
_NAME = ("tenant_id", "scope", "scope_id", "dimension", "period_start")
_FIRST_EPOCH = func.coalesce(select(Deployment.first_epoch).scalar_subquery(), 0)
_NAMES = tuple(getattr(BudgetEpoch, name) for name in _NAME)


@dataclass(frozen=True, slots=True, order=True)
class Budget:
    """One budget in one of its months."""

    tenant_id: str
    scope: Scope
    scope_id: str
    dimension: Dimension
    period_start: datetime
    period_end: datetime

    @classmethod
    def of(cls, tenant_id: str, limit: ScopedLimit) -> "Budget":
        """The budget that a limit with a period stands for."""
        assert limit.budget is not None, limit
        period = limit.budget.period
        return cls(
            tenant_id, limit.scope, limit.scope_id, limit.dimension, period.start, period.end
        )

    def names(self) -> dict[str, Any]:
        """The columns that name it in a row."""
        return {name: getattr(self, name) for name in _NAME}


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """What a budget's use comes to, in its dimension's unit; money in micros."""

    spent: int
    """By billable requests in the ledger, and by adjustments; these may make it negative."""
    reserved: dict[str, int]
    """By open intents, at most: request id to amount."""

    @property
    def total(self) -> int:
        """What counts against the budget."""
        return self.spent + sum(self.reserved.values())


async def epochs_of(session: AsyncSession, budgets: Iterable[Budget]) -> dict[Budget, int]:
    """Return the epochs of those budgets that were ever reckoned."""
    return await _epochs(session, budgets, lock=None)


async def lock_epochs(
    session: AsyncSession, budgets: Iterable[Budget], *, exclusively: bool
) -> dict[Budget, int]:
    """As `epochs_of`, but nobody reckons them anew until this transaction ends; where they are
    locked exclusively nobody locks them at all, and all of them have rows."""
    wanted = sorted(set(budgets))
    if exclusively:
        for budget in wanted:
            row = {**budget.names(), "epoch": _FIRST_EPOCH}
            await session.execute(insert_unless_there(session, BudgetEpoch, *_NAME, **row))
    return await _epochs(session, wanted, lock="update" if exclusively else "share")


async def lock_free_epochs(session: AsyncSession, budgets: Iterable[Budget]) -> dict[Budget, int]:
    """As `lock_epochs`, not exclusively, but of those alone for which that need not wait."""
    return await _epochs(session, budgets, lock="free")


async def raise_epochs(session: AsyncSession, budgets: Iterable[Budget]) -> dict[Budget, int]:
    """Make all copies of these budgets void, and return the new epochs; they stay locked."""
    epochs = await lock_epochs(session, budgets, exclusively=True)
    if epochs:
        await session.execute(
            update(BudgetEpoch)
            .where(_among(epochs))
            .values(epoch=BudgetEpoch.epoch + 1)
            .execution_options(synchronize_session=False)
        )
    return {budget: epoch + 1 for budget, epoch in epochs.items()}


async def void_copies(
    session: AsyncSession, tenant_id: str, scope: Scope, scope_id: str, dimension: Dimension
) -> None:
    """Make all copies of a budget void, of whatever month: intents did not have to name it."""
    await session.execute(
        update(BudgetEpoch)
        .where(
            BudgetEpoch.tenant_id == tenant_id,
            BudgetEpoch.scope == scope,
            BudgetEpoch.scope_id == scope_id,
            BudgetEpoch.dimension == dimension,
        )
        .values(epoch=BudgetEpoch.epoch + 1)
        .execution_options(synchronize_session=False)
    )


async def reckon(
    session: AsyncSession, tenant_id: str, limits: Sequence[ScopedLimit]
) -> list[Reckoning]:
    """Reckon budgets anew: what they are used by now, under a new epoch. Copies are void then."""
    budgets = {Budget.of(tenant_id, limit): limit for limit in limits}
    epochs = await raise_epochs(session, budgets)
    reckonings = []
    for budget, limit in budgets.items():
        use = await use_of(session, budget)
        reckonings.append(
            Reckoning(with_epoch(limit, epochs[budget]), use.spent, use.reserved),
        )
    return reckonings


def with_epoch(limit: ScopedLimit, epoch: int) -> ScopedLimit:
    """Return a budget's limit as of a reckoning."""
    assert limit.budget is not None, limit
    return replace(limit, budget=BudgetPeriod(limit.budget.period, epoch))


async def use_of(session: AsyncSession, budget: Budget) -> BudgetUse:
    """Return what a budget is used by. One statement, so that a request which is settled meanwhile
    is seen as an intent or as usage, never as both or neither."""
    parts = union_all(_charged(budget), _adjusted(budget), _open(budget))
    spent, reserved = 0, {}
    for request_id, high, low in await session.execute(parts):
        amount = int(high) * _SPLIT + int(low)
        if request_id is None:
            spent += amount
        else:
            reserved[request_id] = amount
    return BudgetUse(spent, reserved)


def stored_limit(row: BudgetEpoch, period: Period) -> ScopedLimit:
    """Return a limit that names a budget and its epoch, and says nothing of what it allows."""
    return ScopedLimit(
        scope=cast("Scope", row.scope),
        scope_id=row.scope_id,
        dimension=cast("Dimension", row.dimension),
        value=0,
        burst=0,
        budget=BudgetPeriod(period, row.epoch),
    )


async def _epochs(
    session: AsyncSession,
    budgets: Iterable[Budget],
    lock: Literal["share", "free", "update"] | None,
) -> dict[Budget, int]:
    wanted = {tuple(budget.names().values()): budget for budget in budgets}
    if not wanted:
        return {}
    # All lock in one order, the database's, so that nobody waits for whoever waits for them.
    query = select(BudgetEpoch.epoch, *_NAMES).where(_among(wanted.values())).order_by(*_NAMES)
    if lock is not None:
        query = query.with_for_update(read=lock != "update", skip_locked=lock == "free")
    rows = await session.execute(query)
    return {wanted[tuple(name)]: epoch for epoch, *name in rows}


def _among(budgets: Collection[Budget]) -> ColumnElement[bool]:
    return tuple_(*_NAMES).in_([tuple(budget.names().values()) for budget in budgets])


def _charged(budget: Budget) -> Select[Any, Any, Any]:
    amount: Any = {
        "tokens_per_month": UsageRow.prompt_tokens + UsageRow.completion_tokens,
        "cost_micros_per_month": _micros(UsageRow.cost_pico),
    }[budget.dimension]
    return _sum(amount).where(*_requests(UsageRow, budget), UsageRow.billable)


def _adjusted(budget: Budget) -> Select[Any, Any, Any]:
    names = budget.names().items()
    is_of = (getattr(BudgetAdjustment, name) == value for name, value in names)
    return _sum(BudgetAdjustment.amount).where(*is_of)


def _open(budget: Budget) -> Select[Any, Any, Any]:
    amount: Any = {
        "tokens_per_month": IntentRow.prompt_tokens + IntentRow.max_output_tokens,
        "cost_micros_per_month": _micros(IntentRow.max_cost_pico),
    }[budget.dimension]
    return select(IntentRow.request_id, amount // literal(_SPLIT), amount % literal(_SPLIT)).where(
        *_requests(IntentRow, budget)
    )


def _sum(amount: Any) -> Select[Any, Any, Any]:  # noqa: ANN401  SQL of an integer
    high, low = func.sum(amount // literal(_SPLIT)), func.sum(amount % literal(_SPLIT))
    return select(null().cast(String), func.coalesce(high, 0), func.coalesce(low, 0))


def _micros(pico: Any) -> Any:  # noqa: ANN401  SQL of an integer
    unit = literal(PICO_PER_MICRO)
    return pico // unit + (pico % unit + literal(PICO_PER_MICRO - 1)) // unit


def _requests(table: type[UsageRow | IntentRow], budget: Budget) -> list[ColumnElement[bool]]:
    """Which requests count: those accepted in the period, of whatever the budget is of."""
    conditions = [
        table.tenant_id == budget.tenant_id,
        table.accepted_at >= budget.period_start,
        table.accepted_at < budget.period_end,
    ]
    match budget.scope:
        case "tenant":
            pass
        case "project":
            conditions.append(table.project_id == budget.scope_id)
        case "key":
            conditions.append(table.key_id == budget.scope_id)
        case "adapter":
            owner = select(Tenant.name).where(Tenant.id == budget.tenant_id).scalar_subquery()
            # Names are slugs, which have no wildcards.
            conditions.append(table.model.like(owner + f"/{budget.scope_id}@%"))
    return conditions
