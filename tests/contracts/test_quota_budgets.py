"""What every implementation of `Quotas` must do with months' budgets."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.contracts.quota_stores import (
    DECEMBER,
    LEASE_S,
    NOVEMBER,
    REQUESTS,
    Clock,
    ask,
    limit,
    of_epoch,
    used,
)

from loraplex.tenants.errors import (
    BudgetExhausted,
    BudgetsUnknown,
    QuotaExceeded,
    RequestExceedsLimit,
)
from loraplex.tenants.quotas import InUse, Quotas
from loraplex.tenants.reservations import Hold, LapsedReservation, Reckoning
from loraplex.tenants.scoped_limits import BudgetPeriod, ScopedLimit

COST = limit("cost_micros_per_month", 1000, "project")
TOKENS = limit("tokens_per_month", 500)
BUDGETS = (TOKENS, COST)


async def seed(quotas: Quotas, *budgets: ScopedLimit, spent: int = 0, **reserved: int) -> None:
    await quotas.seed("a", [Reckoning(budget, spent, reserved) for budget in budgets])


async def used_of(quotas: Quotas, *budgets: ScopedLimit) -> list[int]:
    return [standing.used for standing in await quotas.standings("a", budgets)]


async def test_a_budget_that_is_not_known_is_told_as_that_and_nothing_is_taken(
    quotas: Quotas,
) -> None:
    await seed(quotas, TOKENS)
    with pytest.raises(BudgetsUnknown) as refused:
        await quotas.reserve(ask("r1", limits=(REQUESTS, *BUDGETS)))
    assert refused.value.limits == (COST,)
    assert await quotas.in_use("a") == InUse(0, 0, 0, 0)
    assert await used_of(quotas, REQUESTS, *BUDGETS) == [0, 0]


async def test_what_is_used_and_reserved_together_never_exceeds_a_budget(quotas: Quotas) -> None:
    await seed(quotas, *BUDGETS, spent=300, r9=50)
    hold = await quotas.reserve(ask("r1", 100, limits=BUDGETS, output_tokens=50, cost=10))
    assert [(each.used, each.remaining) for each in hold.standings] == [(500, 0), (360, 640)]
    with pytest.raises(BudgetExhausted) as refused:
        await quotas.reserve(ask("r2", 1, limits=BUDGETS))
    assert (refused.value.limit, refused.value.resets_at) == (TOKENS, NOVEMBER.end)


async def test_settled_is_spent_and_the_rest_is_free_again(quotas: Quotas) -> None:
    await seed(quotas, *BUDGETS)
    hold = await quotas.reserve(ask("r1", 400, limits=BUDGETS, cost=900))
    for _ in range(2):
        await quotas.settle(hold, used(300, 20, cost=700))
    await quotas.release(hold)
    assert await used_of(quotas, *BUDGETS) == [320, 700]
    assert await quotas.in_use("a") == InUse(0, 0, 0, 0)


async def test_released_is_not_spent(quotas: Quotas) -> None:
    await seed(quotas, *BUDGETS)
    await quotas.release(await quotas.reserve(ask("r1", 400, limits=BUDGETS, cost=900)))
    assert await used_of(quotas, *BUDGETS) == [0, 0]


async def test_a_budget_stays_reserved_after_the_lease_until_somebody_settles_it(
    quotas: Quotas, clock: Clock
) -> None:
    await seed(quotas, *BUDGETS)
    request = ask("r1", 400, limits=BUDGETS, cost=900)
    await quotas.reserve(request)
    clock.pass_s(LEASE_S)
    assert await quotas.in_use("a") == InUse(0, 0, 0, 0)
    assert await used_of(quotas, *BUDGETS) == [400, 900]
    # Whoever settles it knows the request, not its hold.
    await quotas.settle(Hold(request, ()), used(10, cost=1))
    assert await used_of(quotas, *BUDGETS) == [10, 1]


async def test_the_same_request_again_reserves_once_even_after_its_lease(
    quotas: Quotas, clock: Clock
) -> None:
    await seed(quotas, *BUDGETS)
    request = ask("r1", 400, limits=BUDGETS, cost=900)
    first = await quotas.reserve(request)
    assert await quotas.reserve(request) == first
    clock.pass_s(LEASE_S)
    await quotas.reserve(request)
    assert await used_of(quotas, *BUDGETS) == [400, 900]


async def test_a_budget_of_another_epoch_is_not_known(quotas: Quotas) -> None:
    await seed(quotas, of_epoch(COST, 2))
    for epoch in (1, 3):
        with pytest.raises(BudgetsUnknown):
            await quotas.reserve(ask("r1", limits=(of_epoch(COST, epoch),)))
    assert await used_of(quotas, COST) == []


async def test_a_reckoning_replaces_what_is_known_of_older_epochs_alone(quotas: Quotas) -> None:
    await seed(quotas, of_epoch(COST, 2), spent=100)
    await seed(quotas, of_epoch(COST, 1), of_epoch(COST, 2), spent=900)
    assert await used_of(quotas, of_epoch(COST, 2)) == [100]
    await seed(quotas, of_epoch(COST, 3), spent=40, r8=2)
    assert await used_of(quotas, of_epoch(COST, 3)) == [42]


async def test_a_hold_is_settled_in_a_later_reckoning_that_has_it(quotas: Quotas) -> None:
    await seed(quotas, COST)
    hold = await quotas.reserve(ask("r1", limits=(COST,), cost=30))
    await seed(quotas, of_epoch(COST, 2), spent=100, r1=30)
    await quotas.settle(hold, used(1, cost=20))
    assert await used_of(quotas, of_epoch(COST, 2)) == [120]


async def test_a_hold_that_a_later_reckoning_has_spent_already_is_not_spent_again(
    quotas: Quotas,
) -> None:
    await seed(quotas, COST)
    hold = await quotas.reserve(ask("r1", limits=(COST,), cost=30))
    await seed(quotas, of_epoch(COST, 2), spent=120)
    await quotas.settle(hold, used(1, cost=20))
    assert await used_of(quotas, of_epoch(COST, 2)) == [120]


@pytest.mark.parametrize("cost", [0, 20])
async def test_what_ended_while_a_reckoning_was_on_its_way_does_not_stay_reserved(
    quotas: Quotas, cost: int
) -> None:
    await seed(quotas, COST)
    hold = await quotas.reserve(ask("r1", limits=(COST,), cost=30))
    await quotas.settle(hold, used(1, cost=cost))
    await quotas.release(hold)
    await seed(quotas, of_epoch(COST, 2), spent=100, r1=30)
    assert await used_of(quotas, of_epoch(COST, 2)) == [100 + cost]


@pytest.mark.parametrize("lapses", [False, True])
async def test_a_budget_that_came_later_is_told_of_the_end_of_requests_that_do_not_name_it(
    quotas: Quotas, clock: Clock, lapses: bool
) -> None:
    hold = await quotas.reserve(ask("r1", 10, limits=(REQUESTS,), cost=30))
    await seed(quotas, TOKENS, r1=10)
    await seed(quotas, COST, spent=100, r1=30, r2=5)
    if lapses:
        clock.pass_s(LEASE_S)
    for _ in range(2):
        await quotas.settle(hold, used(7, cost=20))
    assert await used_of(quotas, *BUDGETS) == [7, 125]
    # A reckoning that read the database before that end.
    later = of_epoch(COST, 2)
    await seed(quotas, later, spent=100, r1=30, r2=5)
    if not lapses:
        assert await used_of(quotas, later) == [125]
    await quotas.check()


async def test_a_request_that_holds_again_without_budgets_is_reserved_in_one_that_comes_later(
    quotas: Quotas,
) -> None:
    await seed(quotas, COST)
    await quotas.release(await quotas.reserve(ask("r1", limits=(COST,), cost=30)))
    hold = await quotas.reserve(ask("r1", limits=(REQUESTS,), cost=30))
    await seed(quotas, TOKENS, r1=1)
    assert await used_of(quotas, TOKENS) == [1]
    await quotas.release(hold)
    assert await used_of(quotas, TOKENS) == [0]


async def test_a_request_that_was_released_and_holds_again_stays_reserved(quotas: Quotas) -> None:
    await seed(quotas, COST)
    request = ask("r1", limits=(COST,), cost=30)
    await quotas.release(await quotas.reserve(request))
    await quotas.reserve(request)
    await seed(quotas, of_epoch(COST, 2), r1=30)
    assert await used_of(quotas, of_epoch(COST, 2)) == [30]


async def test_a_request_that_holds_reserves_in_a_later_reckoning_that_lacks_it(
    quotas: Quotas,
) -> None:
    await seed(quotas, COST)
    await quotas.reserve(ask("r1", limits=(REQUESTS, COST), cost=30))
    later = of_epoch(COST, 2)
    await seed(quotas, later, spent=100)
    hold = await quotas.reserve(ask("r1", limits=(REQUESTS, later), cost=30))
    assert [standing.used for standing in hold.standings] == [1, 130]
    await quotas.settle(hold, used(1, cost=30))
    assert await quotas.in_use("a") == InUse(0, 0, 0, 0)


async def test_an_exhausted_budget_is_told_before_limits_that_free_themselves(
    quotas: Quotas,
) -> None:
    limits = (limit("requests_per_minute", 1), COST)
    await seed(quotas, COST, spent=1000)
    await quotas.reserve(ask("r1", limits=limits))
    with pytest.raises(QuotaExceeded):
        await quotas.reserve(ask("r2", limits=limits))
    with pytest.raises(BudgetExhausted):
        await quotas.reserve(ask("r2", limits=limits, cost=1))


async def test_of_exhausted_budgets_the_one_that_lasts_longest_is_told(quotas: Quotas) -> None:
    later = replace(TOKENS, scope="key", budget=BudgetPeriod(DECEMBER, 1))
    await seed(quotas, TOKENS, later, spent=500)
    with pytest.raises(BudgetExhausted) as refused:
        await quotas.reserve(ask("r1", limits=(TOKENS, later)))
    assert refused.value.resets_at == DECEMBER.end


async def test_a_request_above_a_whole_budget_can_never_fit(quotas: Quotas) -> None:
    with pytest.raises(RequestExceedsLimit) as refused:
        await quotas.reserve(ask("r1", limits=(COST,), cost=1001))
    assert refused.value.limit == COST


async def test_a_budget_of_nothing_is_exhausted_for_what_costs(quotas: Quotas) -> None:
    nothing = limit("cost_micros_per_month", 0)
    await seed(quotas, nothing)
    await quotas.reserve(ask("r1", limits=(nothing,)))
    with pytest.raises(BudgetExhausted):
        await quotas.reserve(ask("r2", limits=(nothing,), cost=1))


async def test_a_budget_in_shadow_mode_counts_all_and_tells_what_it_would_have_refused(
    quotas: Quotas,
) -> None:
    shadow = replace(COST, mode="shadow")
    await seed(quotas, shadow, spent=990)
    assert (await quotas.reserve(ask("r1", limits=(shadow,), cost=10))).shadowed == ()
    second = await quotas.reserve(ask("r2", limits=(shadow,), cost=5000))
    assert second.shadowed == (shadow,)
    await quotas.settle(second, used(1, cost=5))
    assert await used_of(quotas, shadow) == [1005]


async def test_each_month_has_a_budget_of_its_own(quotas: Quotas) -> None:
    december = replace(COST, budget=BudgetPeriod(DECEMBER, 1))
    await seed(quotas, COST, spent=1000)
    await seed(quotas, december)
    await quotas.reserve(ask("r1", limits=(december,), cost=7))
    assert await used_of(quotas, COST, december) == [1000, 7]


async def test_a_budget_is_free_again_when_its_month_ends(quotas: Quotas, clock: Clock) -> None:
    await seed(quotas, COST)
    (standing,) = await quotas.standings("a", (COST,))
    assert timedelta(seconds=standing.reset_s) == NOVEMBER.end - clock.now()


def lapsed(request_id: str, budget: ScopedLimit) -> LapsedReservation:
    assert budget.budget is not None
    start = budget.budget.period.start
    return LapsedReservation(budget.scope, budget.scope_id, budget.dimension, start, request_id)


async def test_what_nobody_renewed_or_settled_for_two_leases_is_told_until_it_ends(
    quotas: Quotas, clock: Clock
) -> None:
    await seed(quotas, *BUDGETS)
    left = await quotas.reserve(ask("left", 10, limits=(REQUESTS, *BUDGETS)))
    clock.pass_s(1)
    renewed, settled, later = [
        await quotas.reserve(ask(name, 10, limits=(COST,)))
        for name in ("renewed", "ended", "later")
    ]
    await quotas.settle(settled, used(1))
    clock.pass_s(LEASE_S + 1)
    await quotas.renew(renewed)
    clock.pass_s(LEASE_S - 3)
    assert await quotas.lapsed("a", 9) == ()
    clock.pass_s(1)
    assert set(await quotas.lapsed("a", 9)) == {lapsed("left", TOKENS), lapsed("left", COST)}
    assert await quotas.lapsed("b", 9) == ()
    clock.pass_s(1)
    assert (await quotas.lapsed("a", 9))[2:] == (lapsed("later", COST),)
    assert len(await quotas.lapsed("a", 2)) == 2
    await quotas.release(left)
    await quotas.release(later)
    assert await quotas.lapsed("a", 9) == ()


async def test_what_a_reckoning_found_reserved_is_told_two_leases_later_and_what_it_lacks_is_not(
    quotas: Quotas, clock: Clock
) -> None:
    await seed(quotas, COST)
    await quotas.reserve(ask("r1", limits=(COST,), cost=30))
    clock.pass_s(2 * LEASE_S)
    await seed(quotas, of_epoch(COST, 2), r2=30)
    assert await quotas.lapsed("a", 9) == ()
    clock.pass_s(2 * LEASE_S)
    assert await quotas.lapsed("a", 9) == (lapsed("r2", COST),)
    await quotas.check()
