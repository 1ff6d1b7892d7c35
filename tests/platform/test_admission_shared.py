"""Admission by the store that gateways share: what a dead one left is settled there by another."""

import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tests.platform.admissions import Scene, make_scene
from tests.platform.conftest import NOW
from tests.services.valkey import Valkey
from tests.tenants.open_intents import usage_of

from loraplex.platform.reservation_sweep import ReservationSweep
from loraplex.platform.services import Resources
from loraplex.tenants import intents
from loraplex.tenants.budget_epochs import BudgetEpochs
from loraplex.tenants.intents import BudgetsChanged, Opening
from loraplex.tenants.leases import Lease
from loraplex.tenants.orphans import hold_of, used_by
from loraplex.tenants.quotas_redis import RedisQuotas
from loraplex.tenants.scoped_limits import ScopedLimit


@pytest.fixture
def gateway_database_url(database_url: str) -> str:
    return database_url


@pytest.fixture
async def scene(resources: Resources, valkey: Valkey) -> AsyncIterator[Scene]:
    scene = await make_scene(resources.database)
    valkey.client.flushall()
    quotas = RedisQuotas.open(valkey.url, lease_s=0.001)
    scene.store.inner = quotas
    yield scene
    await quotas.close()


async def test_budgets_of_a_shared_store_wait_for_whoever_settles_and_then_agree(
    scene: Scene,
) -> None:
    hold = await scene.admit()
    left = await scene.admit(1)
    assert (await scene.used()).total == await scene.store_used() == 60
    await scene.settle(hold, 5)
    assert await scene.store_used() == 45
    _, intent = await scene.asked(left.request_id)
    async with scene.database.session() as session:
        orphan = await hold_of(session, intent)
    await scene.ledger.void(left.request_id)
    await scene.store.settle(orphan, used_by(None))
    assert (await scene.used()).total == await scene.store_used() == 15
    assert NOW in scene.limit.budget.period  # type: ignore[union-attr]  # it is a budget


@pytest.fixture
async def sweep(scene: Scene, valkey: Valkey) -> AsyncIterator[ReservationSweep]:
    """Of another gateway, by whose time all leases have long been over."""
    quotas = RedisQuotas.open(valkey.url, clock_ms=lambda: (time.time_ns() // 10**6) + 600_000)
    lease = Lease("gtw_b", 60.0)
    yield ReservationSweep(lease, scene.database, quotas, scene.gateways[1], lambda: NOW)
    await quotas.close()


async def test_what_a_gateway_reserved_before_it_died_and_wrote_no_intent_of_is_freed(
    scene: Scene, sweep: ReservationSweep
) -> None:
    async def budgets() -> tuple[ScopedLimit, ...]:
        return await BudgetEpochs(scene.database).current(scene.tenant_id, [scene.limit])

    running = await scene.admit()
    asked, intent = await scene.asked("req_left")
    known = await budgets()
    await scene.store.reserve(replace(asked, limits=known))
    assert await scene.store_used() == 60
    await sweep.sweep()
    assert (await scene.used()).total == await scene.store_used() == 30
    # Should its gateway only have been slow, then its intent comes too late, and it asks again.
    async with scene.database.session() as session:
        refusals = await intents.open_all(session, [Opening(intent, checked=known)])
    assert refusals == [BudgetsChanged()]
    # What runs is no reason to reckon.
    known = await budgets()
    await sweep.sweep()
    assert await budgets() == known
    await scene.settle(running, 5)
    assert await scene.store_used() == 15


async def test_what_was_paid_and_never_told_to_the_store_is_spent_there_too(
    scene: Scene, sweep: ReservationSweep
) -> None:
    hold = await scene.admit()
    await scene.ledger.append(usage_of(replace(scene.template, request_id=hold.request_id), 5))
    await sweep.sweep()
    assert (await scene.used()).total == await scene.store_used() == 15
