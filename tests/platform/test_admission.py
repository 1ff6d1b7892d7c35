"""Admission: hold and durable intent, or neither; budgets are never exceeded, whatever is lost."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError
from tests.platform.admissions import BUDGET, Scene, make_scene

from loraplex.platform.errors import LedgerUnavailable
from loraplex.platform.services import Resources
from loraplex.tenants import (
    budgets,
    intents,
)
from loraplex.tenants.errors import (
    BudgetExhausted,
    HoldConflict,
)
from loraplex.tenants.reservations import Hold


@pytest.fixture
def gateway_database_url(database_url: str) -> str:
    return database_url


@pytest.fixture
async def scene(resources: Resources) -> Scene:
    return await make_scene(resources.database)


async def test_many_at_once_never_exceed_a_budget_and_all_of_it_can_be_used(scene: Scene) -> None:
    asked = (scene.admit(i % 2) for i in range(12))
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    holds = [each for each in outcomes if isinstance(each, Hold)]
    assert len(holds) == BUDGET // 30
    assert {type(each) for each in outcomes} == {Hold, BudgetExhausted}
    assert (await scene.used()).total == await scene.store_used() == 90
    for hold in holds:
        await scene.settle(hold, 5)
    assert (await scene.used()) == budgets.BudgetUse(45, {})
    assert await scene.store_used() == 45
    await scene.store.check()


async def test_past_a_store_that_is_away_budgets_hold_and_its_copy_is_reckoned_anew(
    scene: Scene,
) -> None:
    first = await scene.admit()
    scene.store.is_away = True
    outcomes = await asyncio.gather(*(scene.admit(i % 2) for i in range(5)), return_exceptions=True)
    assert sum(isinstance(each, Hold) for each in outcomes) == 2
    await scene.settle(first, 0)
    await scene.store.come_back()
    await scene.admit()
    with pytest.raises(BudgetExhausted) as caught:
        await scene.admit()
    assert caught.value.resets_at == scene.limit.budget.period.end  # type: ignore[union-attr]  # it is a budget
    assert (await scene.used()).total == await scene.store_used() == 70 + 30


async def test_a_request_that_ends_between_reckoning_and_telling_the_store_is_not_reserved_for_ever(
    scene: Scene,
) -> None:
    ending, voided = await scene.admit(), await scene.admit()

    async def end() -> None:
        await scene.settle(ending, 5)
        await scene.void(voided)

    scene.store.lose()
    scene.store.before_seed = end
    await scene.gateways[1].reckon(scene.tenant_id, [scene.limit])
    assert await scene.store_used() == 15 == (await scene.used()).total


async def test_a_database_that_is_away_leaves_no_hold(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise OperationalError("insert", {}, Exception("away"))

    await scene.void(await scene.admit())
    monkeypatch.setattr(intents, "open_all", fail)
    with pytest.raises(LedgerUnavailable):
        await scene.admit()
    monkeypatch.undo()
    assert await scene.store_used() == 0
    assert (await scene.store.in_use(scene.tenant_id)).requests == 0


async def test_a_request_whose_key_went_does_not_take_others_with_it(scene: Scene) -> None:
    asked, intent = await scene.asked()
    bad = scene.gateways[0].admit(asked, replace(intent, key_id="gone"), scene.limits_now)
    outcomes = await asyncio.gather(scene.admit(), bad, scene.admit(), return_exceptions=True)
    assert [type(each) for each in outcomes] == [Hold, IntegrityError, Hold]
    assert await scene.store_used() == 60


async def test_an_id_that_runs_keeps_its_hold(scene: Scene) -> None:
    await scene.admit(request_id="req_same")
    with pytest.raises(HoldConflict):
        await scene.admit(request_id="req_same")
    assert (await scene.store.in_use(scene.tenant_id)).requests == 1


async def test_a_budget_that_is_set_while_requests_run_counts_them_to_their_end(
    scene: Scene,
) -> None:
    await scene.remove(0)
    before = await scene.admit()
    await scene.put(0)
    await scene.put(2)
    await scene.admit()
    for limit in await scene.limits_now():
        assert await scene.store_used(limit) == 60
    await scene.settle(before, 5)
    for limit, left in zip(await scene.limits_now(), (45, 35), strict=True):
        assert await scene.store_used(limit) == left == (await scene.used(limit)).total


async def test_a_request_that_found_its_limits_before_a_budget_was_set_is_admitted_by_that_too(
    scene: Scene,
) -> None:
    await scene.remove(0)
    asked, intent = await scene.asked()
    await scene.put(0)
    for _ in range(3):
        await scene.admit()
    assert await scene.store_used() == 90
    with pytest.raises(BudgetExhausted):
        await scene.gateways[1].admit(asked, intent, scene.limits_now)
    assert await scene.store_used() == 90 == (await scene.used()).total


async def test_a_budget_that_is_set_again_knows_what_was_admitted_without_it(scene: Scene) -> None:
    holds = [await scene.admit()]
    await scene.remove(0)
    holds.append(await scene.admit())
    await scene.put(0)
    holds.append(await scene.admit())
    assert await scene.store_used() == 90 == (await scene.used()).total
    for hold in holds:
        await scene.settle(hold, 5)
    assert await scene.store_used() == 45
