"""Quotas against their definition, over any sequence of calls."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.contracts.quota_stores import (
    LEASE_S,
    MINUTE_NS,
    SECOND_NS,
    Clock,
    OpenQuotas,
    ask,
    limit,
    of_epoch,
)

from loraplex.tenants.errors import (
    BudgetExhausted,
    QuotaError,
    QuotaExceeded,
    RequestExceedsLimit,
)
from loraplex.tenants.quotas import InUse
from loraplex.tenants.reservations import NOTHING, Amounts, Hold, Reckoning, Reservation
from loraplex.tenants.scoped_limits import ScopedLimit

LIMITS = (
    limit("requests_per_minute", 6),
    limit("tokens_per_minute", 600, burst=900),
    limit("tokens_per_minute", 300, "key", scope_id="k1", burst=100),
    limit("output_tokens_per_minute", 300, "key", scope_id="k2"),
    limit("concurrency", 3),
    limit("concurrency", 1, "project", mode="shadow"),
    limit("enqueued_tokens", 800, "adapter"),
    limit("cost_micros_per_month", 2000),
    limit("tokens_per_month", 1500, "project"),
)
ALWAYS = (0, 4, 7)
"""Positions of limits that every request has; of the others, any."""


@dataclass(slots=True)
class Entry:
    """A reservation in hindsight: what it counts for, now that more is known."""

    request: Reservation
    at_ns: int
    expires_ns: int
    shadowed: tuple[ScopedLimit, ...]
    counts: Amounts
    """In rates and gauges, as long as the lease lasts."""
    spends: Amounts
    """In budgets."""
    is_leased: bool = True
    is_settled: bool = False

    def counted(self, one: ScopedLimit) -> int:
        """What a limit counts of it."""
        if one not in self.request.limits or one in self.shadowed:
            return 0
        return (self.spends if one.budget else self.counts).of(one.dimension)


@dataclass(slots=True)
class Reference:
    """The definition, computed from the whole history each time."""

    entries: list[Entry] = field(default_factory=list)

    def advance(self, now_ns: int) -> None:
        for entry in self.entries:
            entry.is_leased = entry.is_leased and now_ns < entry.expires_ns

    def level(self, one: ScopedLimit, now_ns: int) -> int:
        """Largest excess of use over what drained, over all windows that end now."""
        total, worst = 0, 0
        for entry in reversed(self.entries):
            total += entry.counted(one) * MINUTE_NS
            worst = max(worst, total - (now_ns - entry.at_ns) * one.value)
        return worst

    def used(self, one: ScopedLimit) -> int:
        """Of a gauge or a budget."""
        return sum(
            entry.counted(one) for entry in self.entries if entry.is_leased or one.kind == "budget"
        )

    def wait_ns(self, one: ScopedLimit, amount: int, now_ns: int) -> int:
        """How long the limit makes a request wait; 0 where it fits."""
        if amount == 0:
            return 0
        if one.kind != "rate":
            return SECOND_NS * (self.used(one) + amount > one.value)
        excess = self.level(one, now_ns) + (amount - one.burst) * MINUTE_NS
        return max(0, -(-excess // one.value))


class QuotasMachine(RuleBasedStateMachine):
    """Any sequence of calls at any times: quotas do exactly what the definition says."""

    def __init__(self, open_quotas: OpenQuotas) -> None:
        super().__init__()
        self.clock = Clock()
        self.runner = asyncio.Runner()
        self.opened = open_quotas(self.clock)
        self.quotas = self.runner.run(self.opened.__aenter__())
        self.reference = Reference()
        self.epoch = 0
        self.reckon()

    def teardown(self) -> None:
        for entry in self.reference.entries:
            self.end(entry, NOTHING)
        assert self.runner.run(self.quotas.in_use("a")) == InUse(0, 0, 0, 0)
        self.all_stands_as_the_definition_says()
        self.runner.run(self.quotas.check())
        self.runner.run(self.opened.__aexit__(None, None, None))
        self.runner.close()

    @property
    def limits(self) -> tuple[ScopedLimit, ...]:
        return tuple(self.now(one) for one in LIMITS)

    def now(self, one: ScopedLimit) -> ScopedLimit:
        """The limit, if it is a budget of the last reckoning."""
        return of_epoch(one, self.epoch) if one.budget else one

    @rule()
    def reckon(self) -> None:
        """What the database knows is what the definition says."""
        self.epoch += 1
        for entry in self.reference.entries:
            limits = tuple(self.now(one) for one in entry.request.limits)
            entry.request = replace(entry.request, limits=limits)
        reckonings = []
        for one in self.limits:
            if one.budget:
                entries = [e for e in self.reference.entries if one in e.request.limits]
                spent = sum(e.counted(one) for e in entries if e.is_settled)
                reserved = {
                    e.request.request_id: e.counted(one) for e in entries if not e.is_settled
                }
                reckonings.append(Reckoning(one, spent, reserved))
        self.runner.run(self.quotas.seed("a", reckonings))

    @rule(
        tokens=st.sampled_from([1, 1, 60, 90, 300, 901]),
        output_tokens=st.sampled_from([0, 10, 40, 301]),
        cost=st.sampled_from([0, 1, 150, 700, 2001]),
        slots=st.sampled_from([1, 1, 1, 2, 4]),
        chosen=st.sets(st.integers(0, len(LIMITS) - 1)),
    )
    def reserve(
        self, tokens: int, output_tokens: int, cost: int, slots: int, chosen: set[int]
    ) -> None:
        limits = tuple(self.limits[i] for i in sorted({*ALWAYS, *chosen}))
        request = ask(
            f"r{len(self.reference.entries)}",
            tokens,
            limits=limits,
            output_tokens=output_tokens,
            cost=cost,
            slots=slots,
        )
        now_ns = self.clock.now_ns
        self.reference.advance(now_ns)
        waits = {
            one: self.reference.wait_ns(one, request.worst.of(one.dimension), now_ns)
            for one in limits
        }
        enforced = {one: wait for one, wait in waits.items() if one.mode == "enforce" and wait}
        answer = self.runner.run(self.answer(request))
        if any(request.worst.of(o.dimension) > o.burst for o in limits if o.mode == "enforce"):
            assert isinstance(answer, RequestExceedsLimit)
        elif any(one.budget for one in enforced):
            assert isinstance(answer, BudgetExhausted)
            assert answer.limit.budget
            assert answer.limit in enforced
        elif enforced:
            assert isinstance(answer, QuotaExceeded)
            assert enforced[answer.limit] == max(enforced.values())
            assert round(answer.retry_after_s * SECOND_NS) == max(enforced.values())
        else:
            assert isinstance(answer, Hold)
            assert answer.shadowed == tuple(one for one, wait in waits.items() if wait)
            expires_ns = now_ns + round(LEASE_S * SECOND_NS)
            self.reference.entries.append(
                Entry(request, now_ns, expires_ns, answer.shadowed, request.worst, request.worst)
            )

    async def answer(self, request: Reservation) -> Hold | QuotaError:
        try:
            return await self.quotas.reserve(request)
        except QuotaError as refused:
            return refused

    @rule(milliseconds=st.integers(1, 70_000))
    def let_time_pass(self, milliseconds: int) -> None:
        self.clock.pass_s(milliseconds / 1000)

    @precondition(lambda self: self.reference.entries)
    @rule(data=st.data(), share=st.sampled_from([0, 0.3, 1]))
    def settle(self, data: st.DataObject, share: float) -> None:
        entry = self.pick(data)
        worst = entry.request.worst
        tokens = int(worst.input_tokens * share), int(worst.output_tokens * share)
        self.end(entry, Amounts(*tokens, int(worst.cost_micros * share)))

    @precondition(lambda self: self.reference.entries)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.end(self.pick(data), NOTHING)

    def end(self, entry: Entry, actual: Amounts) -> None:
        """Ends it in a way that whoever settles it knows: by its request alone."""
        self.reference.advance(self.clock.now_ns)
        self.runner.run(self.quotas.settle(Hold(entry.request, ()), actual))
        if entry.is_leased:
            entry.counts = actual
        if not entry.is_settled:
            entry.spends = actual
        entry.is_settled, entry.is_leased = True, False

    @precondition(lambda self: self.reference.entries)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        entry = self.pick(data)
        self.runner.run(self.quotas.renew(Hold(entry.request, ())))
        if entry.is_leased:
            entry.expires_ns = self.clock.now_ns + round(LEASE_S * SECOND_NS)

    @precondition(lambda self: any(e.is_leased for e in self.reference.entries))
    @rule(data=st.data())
    def reserve_again(self, data: st.DataObject) -> None:
        entry = self.pick(data)
        if entry.is_leased:
            assert self.runner.run(self.quotas.reserve(entry.request)).reservation == entry.request

    @invariant()
    def all_stands_as_the_definition_says(self) -> None:
        self.reference.advance(self.clock.now_ns)
        held = [entry.request.worst for entry in self.reference.entries if entry.is_leased]
        assert self.runner.run(self.quotas.in_use("a")) == InUse.of(held)
        standings = self.runner.run(self.quotas.standings("a", self.limits))
        assert [each.used for each in standings] == [self.used(one) for one in self.limits]

    @invariant()
    def no_limit_is_exceeded_in_any_window(self) -> None:
        for one in self.limits:
            assert self.used(one) <= one.burst

    def used(self, one: ScopedLimit) -> int:
        if one.kind == "rate":
            return -(-self.reference.level(one, self.clock.now_ns) // MINUTE_NS)
        return self.reference.used(one)

    def pick(self, data: st.DataObject) -> Entry:
        """Any reservation so far, ended ones too; recent ones are likelier to be open."""
        entries = self.reference.entries
        entry = entries[-1 - data.draw(st.integers(0, min(len(entries), 6) - 1))]
        self.reference.advance(self.clock.now_ns)
        return entry


@pytest.mark.parametrize(
    ("open_quotas", "max_examples"), [("memory", 30), ("redis", 12)], indirect=["open_quotas"]
)
def test_any_sequence_of_calls_does_what_the_definition_says(
    open_quotas: OpenQuotas, max_examples: int
) -> None:
    run_state_machine_as_test(
        lambda: QuotasMachine(open_quotas),
        settings=settings(
            max_examples=max_examples, stateful_step_count=40, deadline=None, derandomize=True
        ),
    )
