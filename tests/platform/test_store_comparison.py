"""A store is compared with the database while requests run: they are no difference, drift is."""

from dataclasses import replace

import pytest
from tests.platform.test_reconciliation import Scene, make_scene
from tests.tenants.open_intents import nothing_new, usage_of

from loraplex.platform.ledger_writer import LedgerWriter
from loraplex.platform.services import Resources
from loraplex.tenants.intents import Intent
from loraplex.tenants.ledger import UsageRecord
from loraplex.tenants.orphans import used_by
from loraplex.tenants.reservations import NOTHING, Amounts, Hold, Reckoning, Reservation
from loraplex.tenants.scoped_limits import ScopedLimit


@pytest.fixture
def gateway_database_url(postgres_url: str) -> str:
    """SQLite would let nobody write while a budget is compared."""
    return postgres_url


@pytest.fixture
async def scene(resources: Resources) -> Scene:
    return await make_scene(resources)


class Busy:
    """Requests of one tenant, some of which end or begin with each look at the store."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.ledger = LedgerWriter(scene.database)
        self.told = scene.quotas.reckoned
        self.num_looks = 0
        self.holds: list[Hold] = []

    def asked(self, name: str) -> tuple[Reservation, Intent]:
        intent = replace(self.scene.template, request_id=name)
        asked = Reservation(name, intent.tenant_id, (self.scene.limit,), Amounts(10, 20, 30))
        return asked, intent

    def usage(self, request_id: str) -> UsageRecord:
        return usage_of(self.asked(request_id)[1], 5)

    async def admit(self, name: str) -> Hold:
        return await self.scene.admission.admit(*self.asked(name), nothing_new)

    async def reckoned(self, tenant_id: str, limit: ScopedLimit) -> Reckoning | None:
        """Between what the database and the store are asked, one request ends, one begins, and of
        one that ended before the store is told only afterwards."""
        self.num_looks += 1
        ending = self.holds.pop()
        await self.ledger.append(self.usage(ending.request_id))
        await self.scene.quotas.settle(ending, used_by(self.usage(ending.request_id)))
        current = replace(self.scene.limit, budget=limit.budget)
        late, _ = self.asked(f"req_late_{self.num_looks}")
        hold = await self.scene.quotas.reserve(replace(late, limits=(current,)))
        found = await self.told(tenant_id, limit)
        await self.scene.quotas.settle(hold, NOTHING)
        told_late = self.holds.pop()
        await self.scene.quotas.settle(told_late, used_by(self.usage(told_late.request_id)))
        await self.ledger.append(self.usage(self.holds[-2].request_id))
        return found


async def test_drift_is_seen_and_mended_while_requests_come_and_go(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = Busy(scene)
    busy.holds = [await busy.admit(f"req_{number}") for number in range(20)]
    await busy.ledger.append(busy.usage(busy.holds[-2].request_id))
    monkeypatch.setattr(scene.quotas, "reckoned", busy.reckoned)
    same = await scene.reconciliation.reconcile()
    assert (same.num_budgets, same.budgets, same.num_unknown) == (1, (), 0)
    assert busy.num_looks == 2
    await busy.ledger.append(busy.usage("req_lost"))
    (drift,) = (await scene.reconciliation.reconcile()).budgets
    assert drift.database - drift.store == 15
    monkeypatch.undo()
    left = await scene.reconciliation.reconcile()
    assert (left.num_budgets, left.budgets) == (1, ())


async def test_a_hold_that_nobody_ends_is_told_and_an_intent_without_a_hold_is_no_fault(
    scene: Scene,
) -> None:
    busy = Busy(scene)
    unheld = await busy.admit("req_unheld")
    await scene.quotas.settle(unheld, NOTHING)
    await busy.admit("req_both")
    leaked, _ = busy.asked("req_leaked")
    await scene.quotas.reserve(replace(leaked, limits=()))
    found = await scene.reconciliation.reconcile()
    assert (found.store_tokens, found.unheld_tokens, found.held_drift) == (60, 30, 30)
    (drift,) = found.budgets  # the store has given back what may still be spent
    assert (drift.database, drift.store) == (60, 30)
