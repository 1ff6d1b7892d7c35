"""What every implementation of `Quotas` must do; each is tested through the protocol alone."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from loraplex.tenants.quotas import (
    Hold,
    HoldConflict,
    InUse,
    Limits,
    MemoryQuotas,
    QuotaExceeded,
    Quotas,
    Rate,
    RequestExceedsLimit,
    Reservation,
    TenantLimits,
)

DEFAULTS = Limits(requests_per_minute=6, tokens_per_minute=600, concurrency=3)
NO_OWN_LIMITS = TenantLimits()
LEASE_S = 100.0
SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS


class Clock:
    def __init__(self) -> None:
        self.now_ns = 7 * SECOND_NS

    def __call__(self) -> int:
        return self.now_ns

    def pass_s(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND_NS)


def memory_quotas(clock: Clock) -> Quotas:
    return MemoryQuotas(DEFAULTS, clock, LEASE_S)


IMPLEMENTATIONS: dict[str, Callable[[Clock], Quotas]] = {"memory": memory_quotas}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=IMPLEMENTATIONS)
def quotas(request: pytest.FixtureRequest, clock: Clock) -> Quotas:
    return IMPLEMENTATIONS[request.param](clock)


def ask(
    request_id: str, tokens: int = 1, tenant_id: str = "a", limits: TenantLimits = NO_OWN_LIMITS
) -> Reservation:
    return Reservation(request_id, tenant_id, limits, tokens)


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
    assert await quotas.in_use("a") == InUse(requests=1, tokens=100)


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
    assert await quotas.in_use("a") == InUse(requests=0, tokens=0)


async def test_a_renewed_lease_lasts_from_then_on(quotas: Quotas, clock: Clock) -> None:
    hold = await quotas.reserve(ask("r1"))
    clock.pass_s(LEASE_S - 1)
    await quotas.renew(hold)
    clock.pass_s(LEASE_S - 1)
    assert await quotas.in_use("a") == InUse(requests=1, tokens=1)


async def test_a_hold_that_ended_cannot_be_renewed(quotas: Quotas) -> None:
    hold = await quotas.reserve(ask("r1"))
    await quotas.release(hold)
    await quotas.renew(hold)
    assert await quotas.in_use("a") == InUse(requests=0, tokens=0)


async def test_tenants_do_not_share_limits_or_request_ids(quotas: Quotas) -> None:
    await quotas.reserve(ask("r1", tokens=600, tenant_id="a"))
    await quotas.reserve(ask("r1", tokens=500, tenant_id="b"))
    assert await quotas.in_use("b") == InUse(requests=1, tokens=500)


async def test_a_tenants_own_limits_come_before_the_platforms(quotas: Quotas) -> None:
    limits = TenantLimits(tokens_per_minute=1000)
    hold = await quotas.reserve(ask("r1", tokens=1000, limits=limits))
    assert (hold.tokens_rate.limit, hold.requests_rate.limit) == (1000, 6)


async def test_a_changed_limit_holds_from_the_next_request_on(quotas: Quotas, clock: Clock) -> None:
    await quotas.reserve(ask("r1", tokens=600))
    more = TenantLimits(tokens_per_minute=1200)
    hold = await quotas.reserve(ask("r2", tokens=300, limits=more))
    assert (hold.tokens_rate.remaining, hold.tokens_rate.reset_s) == (300, 45.0)


async def test_negative_usage_is_a_mistake_of_the_caller(quotas: Quotas) -> None:
    hold = await quotas.reserve(ask("r1"))
    with pytest.raises(ValueError, match="negative"):
        await quotas.settle(hold, -1)


@dataclass(slots=True)
class Entry:
    """A reservation in hindsight: what it counts for, now that more is known."""

    hold: Hold
    at_ns: int
    expires_ns: int
    tokens: int
    requests: int = 1
    is_open: bool = True


class Reference:
    """The definition, computed from the whole history each time."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def open_entries(self, tenant: str, now_ns: int) -> list[Entry]:
        for entry in self.entries:
            entry.is_open = entry.is_open and now_ns < entry.expires_ns
        return [e for e in self.entries if e.is_open and e.hold.tenant_id == tenant]

    def level(self, tenant: str, now_ns: int, limit: int, what: str) -> int:
        """Largest excess of use over what drained, over all windows that end now."""
        total, worst = 0, 0
        for entry in reversed([e for e in self.entries if e.hold.tenant_id == tenant]):
            total += getattr(entry, what) * MINUTE_NS
            worst = max(worst, total - (now_ns - entry.at_ns) * limit)
        return worst

    def waits_ns(self, tenant: str, tokens: int, now_ns: int) -> dict[str, float]:
        """How long each dimension makes the request wait; 0 where it fits."""
        waits = {}
        for what, units, limit in (
            ("requests", 1, DEFAULTS.requests_per_minute),
            ("tokens", tokens, DEFAULTS.tokens_per_minute),
        ):
            excess = self.level(tenant, now_ns, limit, what) + (units - limit) * MINUTE_NS
            waits[what] = max(0, -(-excess // limit))
        is_full = len(self.open_entries(tenant, now_ns)) >= DEFAULTS.concurrency
        return waits | {"concurrency": SECOND_NS * is_full}


class QuotasMachine(RuleBasedStateMachine):
    """Any sequence of calls at any times: quotas do exactly what the definition says."""

    implementation = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.quotas = IMPLEMENTATIONS[self.implementation](self.clock)
        self.reference = Reference()
        self.runner = asyncio.Runner()

    def teardown(self) -> None:
        self.runner.close()

    tenants = st.sampled_from(["a", "b"])

    @rule(tenant=tenants, tokens=st.integers(1, 601))
    def reserve(self, tenant: str, tokens: int) -> None:
        request = ask(f"r{len(self.reference.entries)}", tokens, tenant)
        now_ns = self.clock.now_ns
        waits = self.reference.waits_ns(tenant, tokens, now_ns)
        answer = self.runner.run(self.answer(request))
        if tokens > DEFAULTS.tokens_per_minute:
            assert isinstance(answer, RequestExceedsLimit)
        elif max(waits.values()) > 0:
            assert isinstance(answer, QuotaExceeded)
            assert waits[answer.dimension] == max(waits.values())
            assert round(answer.retry_after_s * SECOND_NS) == max(waits.values())
        else:
            assert isinstance(answer, Hold)
            expires_ns = now_ns + round(LEASE_S * SECOND_NS)
            self.reference.entries.append(Entry(answer, now_ns, expires_ns, tokens))

    async def answer(self, request: Reservation) -> Hold | QuotaExceeded | RequestExceedsLimit:
        try:
            return await self.quotas.reserve(request)
        except (QuotaExceeded, RequestExceedsLimit) as refused:
            return refused

    @rule(milliseconds=st.integers(1, 70_000))
    def let_time_pass(self, milliseconds: int) -> None:
        self.clock.pass_s(milliseconds / 1000)

    @precondition(lambda self: self.reference.entries)
    @rule(data=st.data(), share=st.floats(0, 1))
    def settle(self, data: st.DataObject, share: float) -> None:
        entry = self.pick(data)
        actual = int(entry.hold.tokens * share)
        self.runner.run(self.quotas.settle(entry.hold, actual))
        if entry.is_open:
            entry.tokens, entry.is_open = actual, False

    @precondition(lambda self: self.reference.entries)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        entry = self.pick(data)
        self.runner.run(self.quotas.release(entry.hold))
        if entry.is_open:
            entry.tokens = entry.requests = 0
            entry.is_open = False

    @precondition(lambda self: self.reference.entries)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        entry = self.pick(data)
        self.runner.run(self.quotas.renew(entry.hold))
        if entry.is_open:
            entry.expires_ns = self.clock.now_ns + round(LEASE_S * SECOND_NS)

    @precondition(lambda self: any(e.is_open for e in self.reference.entries))
    @rule(data=st.data())
    def reserve_again(self, data: st.DataObject) -> None:
        entry = self.pick(data)
        if entry.is_open:
            hold = entry.hold
            again = ask(hold.request_id, hold.tokens, hold.tenant_id)
            assert self.runner.run(self.quotas.reserve(again)) == hold

    @invariant()
    def what_is_in_use_is_the_sum_of_the_open_holds(self) -> None:
        for tenant in ("a", "b"):
            held = self.reference.open_entries(tenant, self.clock.now_ns)
            in_use = self.runner.run(self.quotas.in_use(tenant))
            assert in_use == InUse(len(held), sum(entry.hold.tokens for entry in held))
        self.runner.run(self.quotas.check())

    @invariant()
    def no_window_holds_more_than_a_burst_and_its_rate(self) -> None:
        for tenant in ("a", "b"):
            for what, limit in (("requests", 6), ("tokens", 600)):
                level = self.reference.level(tenant, self.clock.now_ns, limit, what)
                assert level <= limit * MINUTE_NS

    def pick(self, data: st.DataObject) -> Entry:
        """Any reservation so far, ended ones too; recent ones are likelier to be open."""
        entries = self.reference.entries
        entry = entries[-1 - data.draw(st.integers(0, min(len(entries), 6) - 1))]
        self.reference.open_entries(entry.hold.tenant_id, self.clock.now_ns)
        return entry


QuotasMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)
test_any_sequence_of_calls_does_what_the_definition_says = QuotasMachine.TestCase
