"""What every implementation of `Quotas` must do; each is tested through the protocol alone."""

from dataclasses import replace

import pytest
from tests.contracts.quota_stores import (
    BASE,
    CHOICES,
    LEASE_S,
    REQUESTS,
    TOKENS,
    Clock,
    ask,
    limit,
    remaining,
    used,
)

from loraplex.tenants.errors import HoldConflict, QuotaExceeded, RequestExceedsLimit
from loraplex.tenants.quotas import InUse, Quotas
from loraplex.tenants.reservations import Hold
from loraplex.tenants.scoped_limits import ScopedLimit
from loraplex.tenants.standings import Standing

NOTHING_IN_USE = InUse(0, 0, 0, 0)


async def fill(quotas: Quotas, number: int, **asked: int) -> list[Hold]:
    return [await quotas.reserve(ask(f"r{i}", **asked)) for i in range(number)]


async def refused_by(quotas: Quotas, *asked: object, **options: object) -> QuotaExceeded:
    with pytest.raises(QuotaExceeded) as refused:
        await quotas.reserve(ask(*asked, **options))  # type: ignore[arg-type]  # wrong on purpose, or replaced for the test
    return refused.value


async def test_a_hold_tells_how_each_limit_stands(quotas: Quotas) -> None:
    hold = await quotas.reserve(ask("r1", tokens=150))
    assert hold.standings == (
        Standing(REQUESTS, used=1, remaining=5, reset_s=10.0),
        Standing(TOKENS, used=150, remaining=450, reset_s=15.0),
        Standing(CHOICES, used=1, remaining=2, reset_s=0.0),
    )
    assert await quotas.standings("a", BASE) == hold.standings


async def test_limits_that_nobody_used_stand_free(quotas: Quotas) -> None:
    free = [(standing.used, standing.remaining) for standing in await quotas.standings("a", BASE)]
    assert free == [(0, 6), (0, 600), (0, 3)]


async def test_a_part_of_a_unit_that_is_used_up_does_not_count_as_remaining(
    quotas: Quotas, clock: Clock
) -> None:
    await quotas.reserve(ask("r1"))
    clock.pass_s(5.0)
    assert remaining(await quotas.reserve(ask("r2")))[0] == 4


async def test_the_requests_of_a_minute_are_bounded(quotas: Quotas) -> None:
    for i in range(6):
        await quotas.settle(await quotas.reserve(ask(f"r{i}")), used(1))
    refused = await refused_by(quotas, "r6")
    assert (refused.limit, refused.retry_after_s) == (REQUESTS, 10.0)


async def test_after_the_time_that_a_refusal_names_the_request_fits(
    quotas: Quotas, clock: Clock
) -> None:
    await quotas.reserve(ask("r1", tokens=500))
    refused = await refused_by(quotas, "r2", tokens=250)
    assert refused.limit == TOKENS
    clock.pass_s(refused.retry_after_s)
    await quotas.reserve(ask("r2", tokens=250))


async def test_the_refusal_names_the_limit_that_takes_longest(quotas: Quotas) -> None:
    await fill(quotas, 3, tokens=200)
    refused = await refused_by(quotas, "r3", tokens=600)
    assert (refused.limit, refused.retry_after_s) == (TOKENS, 60.0)


@pytest.mark.parametrize(
    ("dimension", "amount"),
    [
        ("input_tokens_per_minute", 100),
        ("output_tokens_per_minute", 7),
        ("tokens_per_minute", 107),
        ("enqueued_tokens", 107),
        ("concurrency", 2),
    ],
)
async def test_each_dimension_counts_its_own_part_of_a_request(
    quotas: Quotas, dimension: str, amount: int
) -> None:
    one = limit(dimension, 1000)  # type: ignore[arg-type]  # wrong on purpose, or replaced for the test
    hold = await quotas.reserve(ask("r1", 100, limits=(one,), output_tokens=7, slots=2))
    assert hold.standings[0].used == amount


@pytest.mark.parametrize("burst", [100, 6000])
async def test_a_burst_is_what_may_be_used_at_once(
    quotas: Quotas, clock: Clock, burst: int
) -> None:
    limits = (limit("tokens_per_minute", 600, burst=burst),)
    hold = await quotas.reserve(ask("r1", burst, limits=limits))
    assert hold.standings == (Standing(limits[0], burst, 0, burst / 10),)
    refused = await refused_by(quotas, "r2", 30, limits=limits)
    assert refused.retry_after_s == 3.0
    clock.pass_s(3.0)
    await quotas.reserve(ask("r2", 30, limits=limits))
    with pytest.raises(RequestExceedsLimit):
        await quotas.reserve(ask("r3", burst + 1, limits=limits))


async def test_requests_that_run_at_a_time_are_bounded(quotas: Quotas) -> None:
    holds = await fill(quotas, 3)
    assert (await refused_by(quotas, "r3")).limit == CHOICES
    await quotas.settle(holds[1], used(1))
    await quotas.reserve(ask("r3"))


async def test_tokens_that_are_open_at_a_time_are_bounded(quotas: Quotas) -> None:
    limits = (limit("enqueued_tokens", 100),)
    hold = await quotas.reserve(ask("r1", 40, limits=limits, output_tokens=30))
    refused = await refused_by(quotas, "r2", 31, limits=limits)
    assert (refused.limit, refused.retry_after_s) == (limits[0], 1.0)
    await quotas.settle(hold, used(40, 1))
    await quotas.reserve(ask("r2", 100, limits=limits))


async def test_each_choice_of_a_request_takes_a_slot(quotas: Quotas) -> None:
    hold = await quotas.reserve(ask("r1", tokens=7, slots=2))
    assert await quotas.in_use("a") == InUse(requests=1, tokens=7, slots=2, cost_micros=0)
    assert (await refused_by(quotas, "r2", slots=2)).limit == CHOICES
    await quotas.reserve(ask("r3", slots=1))
    await quotas.settle(hold, used(7))
    await quotas.reserve(ask("r4", slots=2))


async def test_all_scopes_must_have_room_or_nothing_is_taken(quotas: Quotas) -> None:
    tenant, project = limit("tokens_per_minute", 600), limit("tokens_per_minute", 100, "project")
    key, adapter = limit("requests_per_minute", 6, "key"), limit("concurrency", 1, "adapter")
    limits = (tenant, project, key, adapter)
    await quotas.reserve(ask("r1", 60, limits=limits))
    assert (await refused_by(quotas, "r2", 60, limits=limits)).limit == project
    assert (await refused_by(quotas, "r3", 10, limits=limits)).limit == adapter
    left = [standing.remaining for standing in await quotas.standings("a", limits)]
    assert left == [540, 40, 5, 0]


async def test_each_key_has_limits_of_its_own_beneath_its_tenants(quotas: Quotas) -> None:
    one, other = (limit("requests_per_minute", 1, "key", scope_id=name) for name in ("k1", "k2"))
    await quotas.reserve(ask("r1", limits=(REQUESTS, one)))
    await refused_by(quotas, "r2", limits=(REQUESTS, one))
    hold = await quotas.reserve(ask("r3", limits=(REQUESTS, other)))
    assert remaining(hold) == [4, 0]


async def test_more_choices_than_the_limit_are_refused_for_good(quotas: Quotas) -> None:
    with pytest.raises(RequestExceedsLimit, match="lower n") as refused:
        await quotas.reserve(ask("r1", slots=4))
    assert (refused.value.limit, refused.value.asked) == (CHOICES, 4)


async def test_what_never_fits_is_refused_for_good(quotas: Quotas) -> None:
    with pytest.raises(RequestExceedsLimit) as refused:
        await quotas.reserve(ask("r1", tokens=601))
    assert (refused.value.limit, refused.value.asked) == (TOKENS, 601)
    await quotas.reserve(ask("r1", tokens=600))


async def test_a_limit_of_nothing_refuses_what_takes_of_it_and_nothing_else(
    quotas: Quotas,
) -> None:
    limits = (limit("output_tokens_per_minute", 0, burst=10),)
    await quotas.reserve(ask("r1", limits=limits))
    with pytest.raises(RequestExceedsLimit):
        await quotas.reserve(ask("r2", limits=limits, output_tokens=1))


async def test_a_refused_request_takes_nothing(quotas: Quotas) -> None:
    holds = await fill(quotas, 3, tokens=100)
    await refused_by(quotas, "r3", tokens=100)
    await quotas.settle(holds[0], used(100))
    assert remaining(await quotas.reserve(ask("r4", tokens=100)))[:2] == [2, 200]


async def test_the_same_request_again_gets_its_hold_and_takes_nothing(quotas: Quotas) -> None:
    first = await quotas.reserve(ask("r1", tokens=600, slots=3))
    assert await quotas.reserve(ask("r1", tokens=600, slots=3)) == first
    assert await quotas.in_use("a") == InUse(requests=1, tokens=600, slots=3, cost_micros=0)


async def test_one_request_id_cannot_hold_two_sizes(quotas: Quotas) -> None:
    await quotas.reserve(ask("r1", tokens=100))
    for other in (ask("r1", 101), ask("r1", 100, output_tokens=1), ask("r1", 100, slots=2)):
        with pytest.raises(HoldConflict, match="already holds"):
            await quotas.reserve(other)


async def test_unused_tokens_come_back_once(quotas: Quotas) -> None:
    hold = await quotas.reserve(ask("r1", tokens=500))
    await quotas.settle(hold, used(100))
    await quotas.settle(hold, used(100))
    await quotas.release(hold)
    assert remaining(await quotas.reserve(ask("r2")))[:2] == [4, 499]


async def test_a_request_that_never_ran_leaves_no_trace(quotas: Quotas) -> None:
    hold = await quotas.reserve(ask("r1", tokens=500))
    await quotas.release(hold)
    await quotas.release(hold)
    await quotas.settle(hold, used(500))
    assert remaining(await quotas.reserve(ask("r2")))[:2] == [5, 599]


async def test_tokens_beyond_the_reservation_are_taken_too(quotas: Quotas) -> None:
    await quotas.settle(await quotas.reserve(ask("r1", tokens=100)), used(300))
    assert remaining(await quotas.reserve(ask("r2")))[1] == 299


async def test_a_refund_does_not_make_room_for_a_second_burst(quotas: Quotas, clock: Clock) -> None:
    limits = (limit("tokens_per_minute", 1200, burst=600),)
    first = await quotas.reserve(ask("r1", 600, limits=limits))
    clock.pass_s(30.0)
    second = await quotas.reserve(ask("r2", 600, limits=limits))
    clock.pass_s(30.0)
    await quotas.reserve(ask("r3", 600, limits=limits))
    # The times in which their tokens were not used are over; they are no credit for this one.
    await quotas.settle(second, used(0))
    await quotas.settle(first, used(0))
    await refused_by(quotas, "r4", 600, limits=limits)


async def test_a_lease_that_is_over_frees_gauges_and_counts_as_used_in_rates(
    quotas: Quotas, clock: Clock
) -> None:
    slow = (limit("tokens_per_minute", 6, burst=600), CHOICES)
    hold = await quotas.reserve(ask("r1", 600, limits=slow, slots=3))
    clock.pass_s(LEASE_S)
    assert await quotas.in_use("a") == NOTHING_IN_USE
    await quotas.settle(hold, used(0))
    assert [standing.used for standing in await quotas.standings("a", slow)] == [590, 0]


async def test_slots_of_leases_that_are_over_can_be_taken(quotas: Quotas, clock: Clock) -> None:
    await fill(quotas, 3)
    clock.pass_s(LEASE_S)
    await quotas.reserve(ask("r3"))


async def test_an_old_hold_cannot_end_the_one_that_its_request_id_has_now(
    quotas: Quotas, clock: Clock
) -> None:
    old = await quotas.reserve(ask("r1", tokens=10))
    clock.pass_s(LEASE_S)
    await quotas.reserve(ask("r1", tokens=20))
    await quotas.settle(old, used(10))
    assert await quotas.in_use("a") == InUse(requests=1, tokens=20, slots=1, cost_micros=0)


async def test_a_renewed_lease_lasts_from_then_on(quotas: Quotas, clock: Clock) -> None:
    hold = await quotas.reserve(ask("r1", slots=3))
    clock.pass_s(LEASE_S - 1)
    await quotas.renew(hold)
    clock.pass_s(LEASE_S - 1)
    assert await quotas.in_use("a") == InUse(requests=1, tokens=1, slots=3, cost_micros=0)
    assert (await refused_by(quotas, "r2")).limit == CHOICES


async def test_a_hold_that_ended_cannot_be_renewed(quotas: Quotas) -> None:
    hold = await quotas.reserve(ask("r1"))
    await quotas.release(hold)
    await quotas.renew(hold)
    assert await quotas.in_use("a") == NOTHING_IN_USE


async def test_tenants_do_not_share_limits_or_request_ids(quotas: Quotas) -> None:
    await quotas.reserve(ask("r1", tokens=600, tenant_id="a"))
    await quotas.reserve(ask("r1", tokens=500, tenant_id="b"))
    assert await quotas.in_use("b") == InUse(requests=1, tokens=500, slots=1, cost_micros=0)


async def test_a_changed_limit_holds_from_the_next_request_on(quotas: Quotas) -> None:
    await quotas.reserve(ask("r1", tokens=600))
    more = limit("tokens_per_minute", 1200)
    hold = await quotas.reserve(ask("r2", tokens=300, limits=(more,)))
    assert hold.standings == (Standing(more, used=900, remaining=300, reset_s=45.0),)


async def test_a_lower_limit_drains_slower_even_if_it_refuses(quotas: Quotas, clock: Clock) -> None:
    await quotas.settle(await quotas.reserve(ask("r1", tokens=600)), used(600))
    less = (limit("tokens_per_minute", 300),)
    assert (await refused_by(quotas, "r2", 300, limits=less)).retry_after_s == 120.0
    clock.pass_s(119.0)
    assert (await refused_by(quotas, "r2", 300, limits=less)).retry_after_s == 1.0


def shadow(one: ScopedLimit) -> ScopedLimit:
    return replace(one, mode="shadow")


async def test_a_limit_in_shadow_mode_tells_what_it_would_have_refused(
    quotas: Quotas, clock: Clock
) -> None:
    limits = (shadow(REQUESTS), shadow(TOKENS), shadow(limit("concurrency", 1)))
    first = await quotas.reserve(ask("r1", 400, limits=limits))
    assert first.shadowed == ()
    second = await quotas.reserve(ask("r2", 300, limits=limits))
    assert second.shadowed == limits[1:]
    assert await quotas.reserve(ask("r2", 300, limits=limits)) == second
    assert (await quotas.reserve(ask("r3", 9000, limits=limits))).shadowed == limits[1:]
    # What it would have refused it does not count, as if it had.
    assert [standing.used for standing in await quotas.standings("a", limits)] == [3, 400, 1]
    await quotas.settle(first, used(400))
    await quotas.settle(second, used(300))
    assert (await quotas.reserve(ask("r4", 200, limits=limits))).shadowed == ()


async def test_negative_usage_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="negative"):
        used(-1)
