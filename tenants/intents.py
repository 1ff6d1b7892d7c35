"""Intents: requests that were admitted and are not in the ledger, written before they run.

Whatever dies, an intent is left of each request that may have cost something, and counts against
budgets with the most that it may come to. It goes in the transaction that appends the request's
usage, or when it is known that nothing ran. Its gateway renews the lease; where that stops, another
one claims it, gives the owner time to object, and settles it (`platform/reaper.py`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from datetime import datetime
from typing import cast

from sqlalchemy import ColumnElement, Row, delete, func, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.budgets import (
    Budget,
    epochs_of,
    lock_epochs,
    lock_free_epochs,
    raise_epochs,
    use_of,
)
from loraplex.tenants.dialects import insert_all_unless_there
from loraplex.tenants.money import micros_rounded_up
from loraplex.tenants.periods import Calendar, Period
from loraplex.tenants.quota_tables import IntentRow, LimitPolicy
from loraplex.tenants.scoped_limits import BUDGETS, Dimension, Scope, ScopedLimit
from loraplex.tenants.tables import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What a request may come to, and who serves it; see the table."""

    request_id: str
    tenant_id: str
    project_id: str
    key_id: str
    gateway_id: str
    requested_model: str
    model: str
    adapter_digest: str | None
    price_id: str | None
    prompt_tokens: int
    max_output_tokens: int
    max_cost_pico: int
    accepted_at: datetime
    lease_until: datetime
    service_tier: str | None = None
    delivered_tokens: int = 0

    def amount(self, dimension: Dimension) -> int:
        """What it counts against a budget of the dimension, at most."""
        if dimension == "cost_micros_per_month":
            return micros_rounded_up(self.max_cost_pico)
        return self.prompt_tokens + self.max_output_tokens


@dataclass(frozen=True, slots=True)
class Opening:
    """An intent that is to be written, if the budgets that admitted it still are what they were."""

    intent: Intent
    checked: tuple[ScopedLimit, ...] = ()
    """Budgets that a store has checked, as of their epochs."""
    unchecked: tuple[ScopedLimit, ...] = ()
    """Budgets that are checked here, by their sums."""


@dataclass(frozen=True, slots=True)
class BudgetsChanged:
    """Since the request was admitted budgets were reckoned anew, or limits or a time zone set that
    give it others: it must be admitted again, by what holds now."""


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The request does not fit into what is left of a budget."""

    limit: ScopedLimit


@dataclass(frozen=True, slots=True)
class AlreadyOpen:
    """The request's id is that of another intent."""


Refusal = BudgetsChanged | Exhausted | AlreadyOpen
_FIELDS = tuple(field.name for field in fields(Intent))


async def open_all(session: AsyncSession, openings: Sequence[Opening]) -> list[Refusal | None]:
    """Write intents, and return for each why it was not written, or None if it was.

    Nothing that was written here holds unless the transaction commits.
    """
    refusals = await _refusals(session, openings)
    new = [each.intent for each, refusal in zip(openings, refusals, strict=True) if not refusal]
    written = await _insert(session, new)
    return [
        AlreadyOpen() if refusal is None and opening.intent.request_id not in written else refusal
        for opening, refusal in zip(openings, refusals, strict=True)
    ]


def subjects_of(intent: Intent, tenant: str) -> list[tuple[Scope, str]]:
    """Return whose limits bound a request: scopes and their ids, of a tenant of this name."""
    subjects: list[tuple[Scope, str]] = [
        ("tenant", intent.tenant_id),
        ("project", intent.project_id),
        ("key", intent.key_id),
    ]
    owner, _, adapter = intent.model.partition("/")
    if owner == tenant and intent.adapter_digest is not None:
        subjects.append(("adapter", adapter.partition("@")[0]))
    return subjects


async def lock_free(session: AsyncSession, openings: Sequence[Opening]) -> list[bool]:
    """Lock the budgets that openings were checked by, as `open_all` does, but wait for nobody who
    reckons them; return for each opening whether all of its were free."""
    budgets = [
        {Budget.of(each.intent.tenant_id, limit) for limit in each.checked} for each in openings
    ]
    wanted: set[Budget] = set().union(*budgets)
    locked = (await lock_free_epochs(session, wanted)).keys()
    return [each <= locked for each in budgets]


async def close(session: AsyncSession, request_ids: Collection[str]) -> None:
    """Remove intents: their usage is appended in this transaction, or nothing of them ran."""
    # In one order, as all who lock several.
    ordered = (
        select(IntentRow.request_id)
        .where(IntentRow.request_id.in_(request_ids))
        .order_by(IntentRow.request_id)
        .with_for_update()
    )
    await session.execute(
        delete(IntentRow)
        .where(IntentRow.request_id.in_(ordered))
        .execution_options(synchronize_session=False)
    )


async def renew(
    session: AsyncSession, gateway_id: str, lease_until: datetime, delivered: Mapping[str, int]
) -> set[str]:
    """Renew the leases of a gateway's requests, with the output tokens that it has of each.

    Whoever claimed one gives it back thereby. Returns those that are gone: settled by others.
    """
    if not delivered:
        return set()
    found = await session.scalars(
        select(IntentRow.request_id)
        .where(IntentRow.request_id.in_(delivered))
        .order_by(IntentRow.request_id)
        .with_for_update()
    )
    there = set(found)
    if there:
        await session.execute(
            update(IntentRow),
            [
                {
                    "request_id": request_id,
                    "gateway_id": gateway_id,
                    "lease_until": lease_until,
                    "delivered_tokens": delivered[request_id],
                }
                for request_id in sorted(there)
            ],
        )
    return delivered.keys() - there


async def claim(
    session: AsyncSession, gateway_id: str, now: datetime, lease_until: datetime, limit: int
) -> list[Intent]:
    """Take up to `limit` intents whose leases are over, each by one gateway; oldest first.

    The owner may still be alive and have been cut off: give it the time of a renewal.
    """
    over = (
        select(IntentRow.request_id)
        .where(IntentRow.lease_until < now)
        .order_by(IntentRow.lease_until)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    taken = await session.scalars(
        update(IntentRow)
        .where(IntentRow.request_id.in_(over))
        .values(gateway_id=gateway_id, lease_until=lease_until)
        .returning(IntentRow)
        .execution_options(synchronize_session=False)
    )
    return sorted(map(_intent, taken), key=lambda intent: intent.accepted_at)


async def held(
    session: AsyncSession, gateway_id: str, request_ids: Iterable[str]
) -> dict[str, Intent]:
    """Return those of these intents that are still the gateway's, locked until the end of the
    transaction."""
    rows = await session.scalars(
        select(IntentRow)
        .where(IntentRow.request_id.in_(request_ids), IntentRow.gateway_id == gateway_id)
        .order_by(IntentRow.request_id)
        .with_for_update()
    )
    return {row.request_id: _intent(row) for row in rows}


async def postpone(
    session: AsyncSession, gateway_id: str, request_ids: Collection[str], lease_until: datetime
) -> None:
    """Keep claimed intents for longer, since they cannot be settled yet."""
    await held(session, gateway_id, request_ids)  # locks them in the order that all keep
    await session.execute(
        update(IntentRow)
        .where(IntentRow.request_id.in_(request_ids), IntentRow.gateway_id == gateway_id)
        .values(lease_until=lease_until)
        .execution_options(synchronize_session=False)
    )


async def find(session: AsyncSession, request_ids: Collection[str]) -> set[str]:
    """Return those of the requests that have open intents."""
    rows = await session.scalars(
        select(IntentRow.request_id).where(IntentRow.request_id.in_(request_ids))
    )
    return set(rows)


async def open_tokens(session: AsyncSession, tenant_id: str) -> dict[str, int]:
    """Return the tokens that each open intent of a tenant may come to, by request id."""
    rows = await session.execute(
        select(IntentRow.request_id, IntentRow.prompt_tokens + IntentRow.max_output_tokens).where(
            IntentRow.tenant_id == tenant_id
        )
    )
    return dict(rows.all())


@dataclass(frozen=True, slots=True)
class OpenSum:
    """Open intents of one tenant."""

    intents: int
    tokens: int
    """At most."""
    overdue: int
    """Of the intents, those whose leases are over."""


async def open_sums(session: AsyncSession, now: datetime) -> dict[str, OpenSum]:
    """Return sums of open intents by tenant id."""
    overdue: ColumnElement[int] = func.count().filter(IntentRow.lease_until < now)
    rows = await session.execute(
        select(
            IntentRow.tenant_id,
            func.count(),
            func.sum(IntentRow.prompt_tokens + IntentRow.max_output_tokens),
            overdue,
        ).group_by(IntentRow.tenant_id)
    )
    return {tenant: OpenSum(count, int(tokens), late) for tenant, count, tokens, late in rows}


async def _refusals(session: AsyncSession, openings: Sequence[Opening]) -> list[Refusal | None]:
    """Check budgets: that all are named; copies by their epochs, the others by what the database
    knows of them."""
    bound_by = await _budgets_of(session, [each.intent for each in openings])
    unchecked = {Budget.of(each.intent.tenant_id, it) for each in openings for it in each.unchecked}
    checked = {Budget.of(each.intent.tenant_id, it) for each in openings for it in each.checked}
    # All at once and in one order, or two that hold what the other waits for would wait for ever.
    await lock_epochs(session, unchecked | checked, exclusively=bool(unchecked))
    # Whoever is admitted past the store makes the store's copy void.
    await raise_epochs(session, unchecked)
    epochs = await epochs_of(session, checked)
    used = {budget: (await use_of(session, budget)).total for budget in unchecked}
    refusals: list[Refusal | None] = []
    for opening, its_budgets in zip(openings, bound_by, strict=True):
        refusal = _stale(opening, its_budgets, epochs) or _too_much(opening, used)
        refusals.append(refusal)
        if refusal is None:
            for budget, amount in _amounts(opening):
                used[budget] = used.get(budget, 0) + amount
    return refusals


async def _budgets_of(session: AsyncSession, intents: Sequence[Intent]) -> list[set[Budget]]:
    """Return the budgets that each request has by limits as they are now.

    The tenants stay locked until the transaction ends. Whoever sets a limit or a time zone waits
    for that, so that a budget which comes into being finds all intents that do not name it.
    """
    rows = await session.execute(
        select(Tenant.id, Tenant.name, Tenant.time_zone, Tenant.earlier_time_zones)
        .where(Tenant.id.in_({intent.tenant_id for intent in intents}))
        .order_by(Tenant.id)
        .with_for_update(read=True)
    )
    tenants = {row.id: row for row in rows}
    subjects = [
        [(intent.tenant_id, *subject) for subject in subjects_of(intent, tenant.name)]
        if (tenant := tenants.get(intent.tenant_id))
        else []
        for intent in intents
    ]
    name = (LimitPolicy.tenant_id, LimitPolicy.scope, LimitPolicy.scope_id)
    found = await session.execute(
        select(*name, LimitPolicy.dimension).where(
            LimitPolicy.dimension.in_(BUDGETS),
            tuple_(*name).in_({it for of in subjects for it in of}),
        )
    )
    dimensions: dict[tuple[str, ...], list[Dimension]] = {}
    for *subject, dimension in found:
        dimensions.setdefault(tuple(subject), []).append(cast("Dimension", dimension))
    return [
        {
            Budget(*subject, dimension, period.start, period.end)
            for subject in of
            for dimension in dimensions.get(subject, ())
            for period in [_month_of(intent, tenants[intent.tenant_id])]
        }
        for intent, of in zip(intents, subjects, strict=True)
    ]


def _month_of(intent: Intent, tenant: Row[str, str, str, str]) -> Period:
    calendar = Calendar.parse(tenant.time_zone, tenant.earlier_time_zones)
    return calendar.month_of(intent.accepted_at)


def _stale(
    opening: Opening, its_budgets: Set[Budget], epochs: Mapping[Budget, int]
) -> Refusal | None:
    limits = (*opening.checked, *opening.unchecked)
    if its_budgets - {Budget.of(opening.intent.tenant_id, limit) for limit in limits}:
        return BudgetsChanged()
    for limit in opening.checked:
        budget = Budget.of(opening.intent.tenant_id, limit)
        assert limit.budget is not None
        if epochs.get(budget) != limit.budget.epoch:
            return BudgetsChanged()
    return None


def _too_much(opening: Opening, used: Mapping[Budget, int]) -> Refusal | None:
    for limit in opening.unchecked:
        budget = Budget.of(opening.intent.tenant_id, limit)
        must_fit = limit.mode == "enforce" and limit.on_store_loss != "open"
        if must_fit and used[budget] + opening.intent.amount(limit.dimension) > limit.value:
            return Exhausted(limit)
    return None


def _amounts(opening: Opening) -> list[tuple[Budget, int]]:
    """What an opening adds to the budgets that are summed here, or may be for another one."""
    limits = (*opening.checked, *opening.unchecked)
    tenant_id = opening.intent.tenant_id
    return [(Budget.of(tenant_id, it), opening.intent.amount(it.dimension)) for it in limits]


async def _insert(session: AsyncSession, intents: Sequence[Intent]) -> set[str]:
    """Insert those whose ids are not there yet, and return their ids."""
    if not intents:
        return set()
    rows = [{name: getattr(intent, name) for name in _FIELDS} for intent in intents]
    return await insert_all_unless_there(session, IntentRow, "request_id", rows)


def _intent(row: IntentRow) -> Intent:
    return Intent(**{name: getattr(row, name) for name in _FIELDS})
