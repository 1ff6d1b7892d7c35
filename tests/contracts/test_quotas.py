"""What every implementation of `Quotas` must do; each is tested through the protocol alone."""

import pytest
from tests.contracts.quota_stores import LEASE_S, Clock, ask

from loraplex.tenants.quotas import (
    HoldConflict,
    InUse,
    QuotaExceeded,
    Quotas,
    Rate,
    RequestExceedsLimit,
    TenantLimits,
)


async def test_a_hold_tells_what_is_left_of_both_rates(quotas: Quotas) -> None:
    hold = await quotas.reserve(ask("r1", tokens=150))
    assert hold.requests_rate == Rate(limit=6, remaining=5, reset_s=10.0)
    assert hold.tokens_rate == Rate(limit=600, remaining=450, reset_s=15.0)


async def test_a_part_of_a_unit_that_is_used_up_does_not_count_as_remaining(
    quotas: Quotas, clock: Clock
) -> None:
    await quotas.reserve(ask("r1"))
    clock.pass_s(5.0)
    assert (await quotas.reserve(ask("r2"))).requests_rate.remaining == 4


async def test_the_requests_of_a_minute_are_bounded(quotas: Quotas, clock: Clock) -> None:
    for i in range(6):
        await quotas.settle(await quotas.reserve(ask(f"r{i}")), 1)
    with pytest.raises(QuotaExceeded) as refused:
        await quotas.reserve(ask("r6"))
    assert (refused.value.dimension, refused.value.limit) == ("requests", 6)
    assert refused.value.retry_after_s == 10.0


async def test_after_the_time_that_a_refusal_names_the_request_fits(
    quotas: Quotas, clock: Clock
) -> None:
    await quotas.reserve(ask("r1", tokens=500))
    with pytest.raises(QuotaExceeded) as refused:
        await quotas.reserve(ask("r2", tokens=250))
    assert refused.value.dimension == "tokens"
    clock.pass_s(refused.value.retry_after_s)
    await quotas.reserve(ask("r2", tokens=250))


async def test_the_refusal_names_the_limit_that_takes_longest(quotas: Quotas) -> None:
    for i in range(3):
        await quotas.reserve(ask(f"r{i}", tokens=200))
    with pytest.raises(QuotaExceeded) as refused:
        await quotas.reserve(ask("r3", tokens=600))
    assert (refused.value.dimension, refused.value.retry_after_s) == ("tokens", 60.0)


async def test_requests_that_run_at_a_time_are_bounded(quotas: Quotas) -> None:
    holds = [await quotas.reserve(ask(f"r{i}")) for i in range(3)]
    with pytest.raises(QuotaExceeded) as refused:
        await quotas.reserve(ask("r3"))
    assert (refused.value.dimension, refused.value.limit) == ("concurrency", 3)
    await quotas.settle(holds[1], 1)
    await quotas.reserve(ask("r3"))


async def test_each_choice_of_a_request_takes_a_slot(quotas: Quotas) -> None:
    hold = await quotas.reserve(ask("r1", tokens=7, slots=2))
    assert await quotas.in_use("a") == InUse(requests=1, tokens=7, slots=2)
    with pytest.raises(QuotaExceeded) as refused:
        await quotas.reserve(ask("r2", slots=2))
    assert refused.value.dimension == "concurrency"
    await quotas.reserve(ask("r3", slots=1))
    await quotas.settle(hold, 7)
    await quotas.reserve(ask("r4", slots=2))


async def test_more_choices_than_the_limit_are_refused_for_good(quotas: Quotas) -> None:
    with pytest.raises(RequestExceedsLimit, match="lower n") as refused:
        await quotas.reserve(ask("r1", slots=4))
    assert (refused.value.dimension, refused.value.limit) == ("concurrency", 3)


async def test_a_refused_request_takes_nothing(quotas: Quotas) -> None:
    holds = [await quotas.reserve(ask(f"r{i}", tokens=100)) for i in range(3)]
    with pytest.raises(QuotaExceeded):
        await quotas.reserve(ask("r3", tokens=100))
    await quotas.settle(holds[0], 100)
    hold = await quotas.reserve(ask("r4", tokens=100))
    assert (hold.requests_rate.remaining, hold.tokens_rate.remaining) == (2, 200)


async def test_what_never_fits_is_refused_for_good(quotas: Quotas) -> None:
    with pytest.raises(RequestExceedsLimit) as refused:
        await quotas.reserve(ask("r1", tokens=601))
    assert (refused.value.limit, refused.value.asked) == (600, 601)
    await quotas.reserve(ask("r1", tokens=600))


async def test_the_same_request_again_gets_its_hold_and_takes_nothing(quotas: Quotas) -> None:
    first = await quotas.reserve(ask("r1", tokens=100))
    assert await quotas.reserve(ask("r1", tokens=100)) == first
    assert await quotas.in_use("a") == InUse(requests=1, tokens=100, slots=1)


async def test_one_request_id_cannot_hold_two_sizes(quotas: Quotas) -> None:
    await quotas.reserve(ask("r1", tokens=100))
    with pytest.raises(HoldConflict):
        await quotas.reserve(ask("r1", tokens=101))


async def test_unused_tokens_come_back_once(quotas: Quotas) -> None:
    hold = await quotas.reserve(ask("r1", tokens=500))
    await quotas.settle(hold, 100)
    await quotas.settle(hold, 100)
    await quotas.release(hold)
    later = await quotas.reserve(ask("r2", tokens=1))
    assert (later.tokens_rate.remaining, later.requests_rate.remaining) == (499, 4)


async def test_a_request_that_never_ran_leaves_no_trace(quotas: Quotas) -> None:
    hold = await quotas.reserve(ask("r1", tokens=500))
    await quotas.release(hold)
    await quotas.release(hold)
    await quotas.settle(hold, 500)
    later = await quotas.reserve(ask("r2", tokens=1))
    assert (later.tokens_rate.remaining, later.requests_rate.remaining) == (599, 5)


async def test_tokens_beyond_the_reservation_are_taken_too(quotas: Quotas) -> None:
    await quotas.settle(await quotas.reserve(ask("r1", tokens=100)), 300)
    assert (await quotas.reserve(ask("r2", tokens=1))).tokens_rate.remaining == 299


async def test_a_refund_does_not_make_room_for_a_second_burst(quotas: Quotas, clock: Clock) -> None:
    old = await quotas.reserve(ask("r1", tokens=600))
    clock.pass_s(60.0)
    await quotas.reserve(ask("r2", tokens=600))
    # The minute in which r1's tokens were not used is over; they are no credit for this one.
    await quotas.settle(old, 0)
    with pytest.raises(QuotaExceeded):
        await quotas.reserve(ask("r3", tokens=600))


async def test_a_lease_that_is_over_frees_its_slot(quotas: Quotas, clock: Clock) -> None:
    await quotas.reserve(ask("r1"))
    clock.pass_s(LEASE_S)
    assert await quotas.in_use("a") == InUse(requests=0, tokens=0, slots=0)


async def test_slots_of_leases_that_are_over_can_be_taken(quotas: Quotas, clock: Clock) -> None:
    for i in range(3):
        await quotas.reserve(ask(f"r{i}"))
    clock.pass_s(LEASE_S)
    await quotas.reserve(ask("r3"))


async def test_an_old_hold_cannot_end_the_one_that_its_request_id_has_now(
    quotas: Quotas, clock: Clock
) -> None:
    old = await quotas.reserve(ask("r1", tokens=10))
    clock.pass_s(LEASE_S)
    await quotas.reserve(ask("r1", tokens=20))
    await quotas.settle(old, 10)
    assert await quotas.in_use("a") == InUse(requests=1, tokens=20, slots=1)


async def test_a_renewed_lease_lasts_from_then_on(quotas: Quotas, clock: Clock) -> None:
    hold = await quotas.reserve(ask("r1"))
    clock.pass_s(LEASE_S - 1)
    await quotas.renew(hold)
    clock.pass_s(LEASE_S - 1)
    assert await quotas.in_use("a") == InUse(requests=1, tokens=1, slots=1)


async def test_a_hold_that_ended_cannot_be_renewed(quotas: Quotas) -> None:
    hold = await quotas.reserve(ask("r1"))
    await quotas.release(hold)
    await quotas.renew(hold)
    assert await quotas.in_use("a") == InUse(requests=0, tokens=0, slots=0)


async def test_tenants_do_not_share_limits_or_request_ids(quotas: Quotas) -> None:
    await quotas.reserve(ask("r1", tokens=600, tenant_id="a"))
    await quotas.reserve(ask("r1", tokens=500, tenant_id="b"))
    assert await quotas.in_use("b") == InUse(requests=1, tokens=500, slots=1)


async def test_a_tenants_own_limits_come_before_the_platforms(quotas: Quotas) -> None:
    limits = TenantLimits(tokens_per_minute=1000)
    hold = await quotas.reserve(ask("r1", tokens=1000, limits=limits))
    assert (hold.tokens_rate.limit, hold.requests_rate.limit) == (1000, 6)


async def test_a_changed_limit_holds_from_the_next_request_on(quotas: Quotas, clock: Clock) -> None:
    await quotas.reserve(ask("r1", tokens=600))
    more = TenantLimits(tokens_per_minute=1200)
    hold = await quotas.reserve(ask("r2", tokens=300, limits=more))
    assert (hold.tokens_rate.remaining, hold.tokens_rate.reset_s) == (300, 45.0)


async def test_a_lower_limit_drains_slower_even_if_it_refuses(quotas: Quotas, clock: Clock) -> None:
    await quotas.settle(await quotas.reserve(ask("r1", tokens=600)), 600)
    less = TenantLimits(tokens_per_minute=300)
    with pytest.raises(QuotaExceeded) as refused:
        await quotas.reserve(ask("r2", tokens=300, limits=less))
    assert refused.value.retry_after_s == 120.0
    clock.pass_s(119.0)
    with pytest.raises(QuotaExceeded) as refused:
        await quotas.reserve(ask("r2", tokens=300, limits=less))
    assert refused.value.retry_after_s == 1.0


async def test_negative_usage_is_a_mistake_of_the_caller(quotas: Quotas) -> None:
    hold = await quotas.reserve(ask("r1"))
    with pytest.raises(ValueError, match="negative"):
        await quotas.settle(hold, -1)
