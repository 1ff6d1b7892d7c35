"""Quotas against their definition, over any sequence of calls."""

import asyncio
from dataclasses import dataclass

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
    DEFAULTS,
    LEASE_S,
    MINUTE_NS,
    SECOND_NS,
    Clock,
    OpenQuotas,
    ask,
)

from loraplex.tenants.quotas import (
    Hold,
    InUse,
    QuotaExceeded,
    RequestExceedsLimit,
    Reservation,
)


@dataclass(slots=True)
class Entry:
    """A reservation in hindsight: what it counts for, now that more is known."""

    hold: Hold
    at_ns: int
    expires_ns: int
    tokens: int
    slots: int = 1
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

    def waits_ns(self, tenant: str, tokens: int, slots: int, now_ns: int) -> dict[str, float]:
        """How long each dimension makes the request wait; 0 where it fits."""
        waits = {}
        for what, units, limit in (
            ("requests", 1, DEFAULTS.requests_per_minute),
            ("tokens", tokens, DEFAULTS.tokens_per_minute),
        ):
            excess = self.level(tenant, now_ns, limit, what) + (units - limit) * MINUTE_NS
            waits[what] = max(0, -(-excess // limit))
        held = sum(entry.slots for entry in self.open_entries(tenant, now_ns))
        is_full = held + slots > DEFAULTS.concurrency
        return waits | {"concurrency": SECOND_NS * is_full}


class QuotasMachine(RuleBasedStateMachine):
    """Any sequence of calls at any times: quotas do exactly what the definition says."""

    def __init__(self, open_quotas: OpenQuotas) -> None:
        super().__init__()
        self.clock = Clock()
        self.runner = asyncio.Runner()
        self.opened = open_quotas(self.clock)
        self.quotas = self.runner.run(self.opened.__aenter__())
        self.reference = Reference()

    def teardown(self) -> None:
        self.runner.run(self.opened.__aexit__(None, None, None))
        self.runner.close()

    tenants = st.sampled_from(["a", "b"])

    @rule(tenant=tenants, tokens=st.integers(1, 601), slots=st.sampled_from([1, 1, 1, 2, 4]))
    def reserve(self, tenant: str, tokens: int, slots: int) -> None:
        request = ask(f"r{len(self.reference.entries)}", tokens, tenant, slots=slots)
        now_ns = self.clock.now_ns
        waits = self.reference.waits_ns(tenant, tokens, slots, now_ns)
        answer = self.runner.run(self.answer(request))
        if tokens > DEFAULTS.tokens_per_minute or slots > DEFAULTS.concurrency:
            assert isinstance(answer, RequestExceedsLimit)
        elif max(waits.values()) > 0:
            assert isinstance(answer, QuotaExceeded)
            assert waits[answer.dimension] == max(waits.values())
            assert round(answer.retry_after_s * SECOND_NS) == max(waits.values())
        else:
            assert isinstance(answer, Hold)
            expires_ns = now_ns + round(LEASE_S * SECOND_NS)
            self.reference.entries.append(Entry(answer, now_ns, expires_ns, tokens, slots))

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
            tokens, slots = (sum(e.hold.tokens for e in held), sum(e.slots for e in held))
            assert in_use == InUse(len(held), tokens, slots)
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


def test_any_sequence_of_calls_does_what_the_definition_says(open_quotas: OpenQuotas) -> None:
    run_state_machine_as_test(
        lambda: QuotasMachine(open_quotas),
        settings=settings(max_examples=30, stateful_step_count=40, deadline=None, derandomize=True),
    )
