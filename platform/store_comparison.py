"""Compares what a store of quotas counts with the database, request by request, while requests run.

A budget's row is locked meanwhile, so that no intent of it is written (`tenants/budgets.py`), and
what ends is told to the database first. So a request that one of both has and the other lacks has
ended, and the ledger says what it spent; or it is on its way to the other one, and is not any more
when both are asked again.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from loraplex.tenants import budgets, intents
from loraplex.tenants.budgets import BudgetUse
from loraplex.tenants.db import Database
from loraplex.tenants.known_budgets import KnownBudget
from loraplex.tenants.ledger import records_of
from loraplex.tenants.orphans import used_by
from loraplex.tenants.quotas import Quotas
from loraplex.tenants.reservations import Reckoning

SETTLE_DOWN_S = 0.3
"""A request that is between database and store for a moment is not a difference."""
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class BudgetDrift:
    """What both count of a budget; no drift if that is the same."""

    known: KnownBudget
    database: int
    store: int


@dataclass(frozen=True, slots=True)
class HeldTokens:
    """Holds of a tenant in the store, beside its intents."""

    held: int
    """By holds."""
    unheld: int
    """By intents without holds: admitted while the store was away, or not renewed in time."""
    drift: int
    """By holds without intents, or of another size."""


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at a budget in both."""

    used: int
    """As the store counts."""
    drift: int
    """What the store counts too much, but for those that follow."""
    on_their_way: dict[str, int]
    """What it counts too much for requests that it may be about to be told of."""


async def compare_budget(
    database: Database, quotas: Quotas, known: KnownBudget
) -> BudgetDrift | None:
    """Return what both count of a budget; None where the store does not know it.

    Raises what the database does, and QuotaBackendUnavailable.
    """
    look = await _look_at(database, quotas, known)
    for _ in range(ATTEMPTS - 1):
        if look is None or not (look.drift or look.on_their_way):
            break
        await asyncio.sleep(SETTLE_DOWN_S)
        before, look = look, await _look_at(database, quotas, known)
        if look is not None:
            for request_id in look.on_their_way.keys() - before.on_their_way.keys():
                del look.on_their_way[request_id]
    if look is None:
        return None
    drift = look.drift + sum(look.on_their_way.values())
    return BudgetDrift(known, look.used - drift, look.used)


async def compare_holds(database: Database, quotas: Quotas, tenant_id: str) -> HeldTokens:
    """Compare a tenant's holds with its intents. Raises as `compare_budget` does."""
    drift: dict[str, int] | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            await asyncio.sleep(SETTLE_DOWN_S)
        before = await _open_tokens(database, tenant_id)
        worst = await quotas.held(tenant_id)
        opened = before | await _open_tokens(database, tenant_id)
        held = {i: each.input_tokens + each.output_tokens for i, each in worst.items()}
        drift = {
            i: abs(amount - opened.get(i, 0))
            for i, amount in held.items()
            if amount != opened.get(i, 0) and (drift is None or i in drift)
        }
        if not drift:
            break
    unheld = sum(amount for i, amount in before.items() if i not in held)
    return HeldTokens(sum(held.values()), unheld, sum(drift.values()) if drift else 0)


async def _open_tokens(database: Database, tenant_id: str) -> dict[str, int]:
    async with database.reader() as session:
        return await intents.open_tokens(session, tenant_id)


async def _look_at(database: Database, quotas: Quotas, known: KnownBudget) -> _Look | None:
    budget = known.budget
    async with database.session() as session:
        epochs = await budgets.lock_epochs(session, [budget], exclusively=True)
        use = await budgets.use_of(session, budget)
        limit = budgets.with_epoch(known.limit, epochs[budget])
        told = await quotas.reckoned(budget.tenant_id, limit)
        if told is None:
            return None
        of_one = use.reserved.keys() ^ told.reserved.keys()
        still_open = await intents.find(session, of_one)
        records = await records_of(session, of_one)
    charged = {i: used_by(records.get(i)).of(budget.dimension) for i in of_one}
    return _difference(use, told, still_open, charged)


def _difference(
    use: BudgetUse, told: Reckoning, still_open: set[str], charged: Mapping[str, int]
) -> _Look:
    drift = told.spent - use.spent
    on_their_way = {}
    for request_id, amount in use.reserved.items():
        if request_id in told.reserved:
            drift += told.reserved[request_id] - amount
        else:  # the store lost it, or it has ended since the database was read
            drift -= amount if request_id in still_open else charged[request_id]
    for request_id, amount in told.reserved.items():
        if request_id not in use.reserved:
            drift += charged[request_id]
            on_their_way[request_id] = amount - charged[request_id]
    return _Look(told.spent + sum(told.reserved.values()), drift, on_their_way)
