"""Quotas of one process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from loraplex.tenants.bucket import Bucket
from loraplex.tenants.errors import BudgetExhausted, BudgetsUnknown, QuotaExceeded
from loraplex.tenants.limit_states import (
    NS_PER_S,
    BudgetState,
    GaugeState,
    LimitState,
    RateState,
)
from loraplex.tenants.periods import Period
from loraplex.tenants.quotas import KEEP_BUDGETS, LEASE_S, InUse, confirm_size
from loraplex.tenants.reservations import (
    NOTHING,
    Amounts,
    Hold,
    LapsedReservation,
    Reckoning,
    Reservation,
)
from loraplex.tenants.scoped_limits import Dimension, Scope, ScopedLimit
from loraplex.tenants.standings import Standing

KEEP_ENDED_NS = 60 * NS_PER_S
"""How long a reckoning may be on its way."""
SWEEP_EVERY = 4096
"""Reservations between two looks for states that no longer say anything."""

Key = tuple[Scope, str, Dimension, Period | None]
_Stated = tuple[ScopedLimit, LimitState]


@dataclass(slots=True)
class _Lease:
    worst: Amounts
    expires_ns: int
    taken: dict[Key, Dimension] = field(default_factory=dict)
    """What it is counted in."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """What a request came to; a reckoning that is on its way may not know it."""

    actual: Amounts
    until_ns: int


@dataclass(slots=True)
class _Tenant:
    states: dict[Key, LimitState] = field(default_factory=dict)
    leases: dict[str, _Lease] = field(default_factory=dict)
    """Of open holds by the request's id."""
    ended: dict[str, _Ended] = field(default_factory=dict)
    """Of requests that ended lately, oldest first."""
    found: dict[str, set[Key]] = field(default_factory=dict)
    """Of requests that reckonings found open: the budgets that reserve for them since then, which
    their holds may not name."""
    reserved_until_ns: dict[tuple[Key, str], int] = field(default_factory=dict)
    """Ends of the leases of what requests reserve of budgets."""

    def advance(self, now_ns: int) -> None:
        """End the leases that are over, and forget what ended long ago."""
        while self.ended and next(iter(self.ended.values())).until_ns <= now_ns:
            del self.ended[next(iter(self.ended))]
        for request_id in [i for i, held in self.leases.items() if held.expires_ns <= now_ns]:
            for key in self.leases.pop(request_id).taken:
                if key in self.states:
                    self.states[key].lapse(request_id)

    def budget(self, limit: ScopedLimit) -> BudgetState | None:
        """Return the state of a budget, if it is known and of the limit's epoch."""
        state = self.states.get(key_of(limit))
        if isinstance(state, BudgetState) and state.epoch == epoch_of(limit):
            return state
        return None

    def reckoned(self, told: Reckoning) -> BudgetState:
        """Return a budget's state as it was reckoned, less what has ended since then."""
        ended = [self.ended[request_id] for request_id in told.reserved if request_id in self.ended]
        reserved = {i: amount for i, amount in told.reserved.items() if i not in self.ended}
        spent = told.spent + sum(each.actual.of(told.limit.dimension) for each in ended)
        return BudgetState(epoch_of(told.limit), spent, reserved, sum(reserved.values()))

    def replace(self, key: Key, state: BudgetState | None) -> None:
        """Put a reckoned budget in the place of what is known of it; None forgets it."""
        known = self.states.pop(key, None)
        for request_id in known.reserved if isinstance(known, BudgetState) else ():
            if key in self.found.get(request_id, ()):
                self.found[request_id].remove(key)
                if not self.found[request_id]:
                    del self.found[request_id]
        if state is not None:
            self.states[key] = state
            for request_id in state.reserved:
                self.found.setdefault(request_id, set()).add(key)

    def lapsed(self, before_ns: int) -> list[tuple[Key, str]]:
        """Return what is still reserved though its lease ended before a time, the oldest first."""
        for each in list(self.reserved_until_ns):
            state = self.states.get(each[0])
            if state is None or not state.holds(each[1]):
                del self.reserved_until_ns[each]
        over = [each for each, until_ns in self.reserved_until_ns.items() if until_ns <= before_ns]
        return sorted(over, key=self.reserved_until_ns.__getitem__)

    def state(self, limit: ScopedLimit, now_ns: int) -> LimitState:
        """Return the state of a limit as of now: a new one for what has none, if no budget."""
        state = self.states.get(key_of(limit)) or _new_state(limit, now_ns)
        state.advance(now_ns)
        return state


class MemoryQuotas:
    """Quotas of one process; they are lost with it, and so are the requests that held them."""

    def __init__(
        self,
        clock_ns: Callable[[], int],
        lease_s: float = LEASE_S,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Take a monotonic clock (ns), how long a lease lasts, and the time that months are of."""
        self._clock_ns = clock_ns
        self._lease_ns = round(lease_s * NS_PER_S)
        self._now = now
        self._tenants: dict[str, _Tenant] = {}
        self._num_reserved = 0

    @property
    def is_degraded(self) -> bool:
        """See `Quotas.is_degraded`; never."""
        return False

    async def reserve(self, request: Reservation) -> Hold:
        """See `Quotas.reserve`."""
        request.refuse_impossible()
        now_ns = self._clock_ns()
        tenant = self._tenants.setdefault(request.tenant_id, _Tenant())
        tenant.advance(now_ns)
        lease = tenant.leases.get(request.request_id)
        if lease is not None:
            confirm_size(request, lease.worst)
        unknown = [limit for limit in _budgets(request) if tenant.budget(limit) is None]
        if unknown:
            raise BudgetsUnknown(unknown)
        states = [(limit, tenant.state(limit, now_ns)) for limit in request.limits]
        for limit, state in states:
            state.follow(limit)
            tenant.states[key_of(limit)] = state
        # One that holds is counted by what it was admitted by; budgets may be reckoned since then.
        asked = [each for each in states if lease is None or each[0].kind == "budget"]
        fitting = _refuse_what_does_not_fit(request, asked)
        if lease is None:
            lease = _Lease(request.worst, now_ns + self._lease_ns)
            tenant.leases[request.request_id] = lease
        tenant.ended.pop(request.request_id, None)
        for limit, state in fitting:
            state.take(request.request_id, request.worst.of(limit.dimension))
            lease.taken[key_of(limit)] = limit.dimension
        for limit in _budgets(request):
            reserved = (key_of(limit), request.request_id)
            tenant.reserved_until_ns[reserved] = now_ns + self._lease_ns
        self._sweep_sometimes(now_ns)
        return self._hold(request, states)

    async def renew(self, hold: Hold) -> None:
        """See `Quotas.renew`."""
        tenant = self._tenants.get(hold.reservation.tenant_id, _Tenant())
        tenant.advance(self._clock_ns())
        lease = tenant.leases.get(hold.request_id)
        until_ns = self._clock_ns() + self._lease_ns
        if lease is not None and lease.worst != hold.reservation.worst:
            return
        if lease is not None:
            lease.expires_ns = until_ns
        named = {key_of(limit) for limit in _budgets(hold.reservation)}
        for key in named | tenant.found.get(hold.request_id, set()):
            reserved = (key, hold.request_id)
            if reserved in tenant.reserved_until_ns:
                tenant.reserved_until_ns[reserved] = until_ns

    async def settle(self, hold: Hold, actual: Amounts) -> None:
        """See `Quotas.settle`."""
        asked = hold.reservation
        tenant = self._tenants.get(asked.tenant_id, _Tenant())
        now_ns = self._clock_ns()
        tenant.advance(now_ns)
        lease = tenant.leases.get(hold.request_id)
        if lease is not None and lease.worst != asked.worst:
            return
        keys = {key_of(limit): limit.dimension for limit in _budgets(asked)}
        keys |= {key: key[2] for key in tenant.found.pop(hold.request_id, ())}
        tenant.ended.setdefault(hold.request_id, _Ended(actual, now_ns + KEEP_ENDED_NS))
        if lease is not None:
            del tenant.leases[hold.request_id]
            keys |= lease.taken
        for key, dimension in keys.items():
            tenant.reserved_until_ns.pop((key, hold.request_id), None)
            state = tenant.states.get(key)
            if state is not None:
                state.advance(now_ns)
                state.end(hold.request_id, asked.worst.of(dimension), actual.of(dimension))

    async def release(self, hold: Hold) -> None:
        """See `Quotas.release`."""
        await self.settle(hold, NOTHING)

    async def seed(self, tenant_id: str, reckonings: Sequence[Reckoning]) -> None:
        """See `Quotas.seed`."""
        tenant = self._tenants.setdefault(tenant_id, _Tenant())
        for told in reckonings:
            epoch, key = epoch_of(told.limit), key_of(told.limit)
            known = tenant.states.get(key)
            if not isinstance(known, BudgetState) or known.epoch < epoch:
                state = tenant.reckoned(told)
                tenant.replace(key, state)
                until_ns = self._clock_ns() + self._lease_ns
                tenant.reserved_until_ns |= {(key, i): until_ns for i in state.reserved}

    async def lapsed(self, tenant_id: str, most: int) -> tuple[LapsedReservation, ...]:
        """See `Quotas.lapsed`."""
        tenant = self._tenants.get(tenant_id, _Tenant())
        return tuple(
            LapsedReservation(scope, scope_id, dimension, period.start, request_id)
            for (scope, scope_id, dimension, period), request_id in tenant.lapsed(
                self._clock_ns() - self._lease_ns
            )[:most]
            if period is not None
        )

    async def standings(
        self, tenant_id: str, limits: Sequence[ScopedLimit]
    ) -> tuple[Standing, ...]:
        """See `Quotas.standings`."""
        now_ns, now = self._clock_ns(), self._now()
        tenant = self._tenants.get(tenant_id, _Tenant())
        tenant.advance(now_ns)
        known = [each for each in limits if each.kind != "budget" or tenant.budget(each)]
        return tuple(
            tenant.state(limit, now_ns).standing(limit, _seconds_left(limit, now))
            for limit in known
        )

    async def reckoned(self, tenant_id: str, limit: ScopedLimit) -> Reckoning | None:
        """See `Quotas.reckoned`."""
        state = self._tenants.get(tenant_id, _Tenant()).budget(limit)
        return None if state is None else Reckoning(limit, state.spent, dict(state.reserved))

    async def held(self, tenant_id: str) -> dict[str, Amounts]:
        """See `Quotas.held`."""
        tenant = self._tenants.get(tenant_id, _Tenant())
        tenant.advance(self._clock_ns())
        return {request_id: lease.worst for request_id, lease in tenant.leases.items()}

    async def in_use(self, tenant_id: str) -> InUse:
        """See `Quotas.in_use`."""
        return InUse.of(list((await self.held(tenant_id)).values()))

    async def check(self) -> None:
        """See `Quotas.check`."""
        for tenant in self._tenants.values():
            for key, state in tenant.states.items():
                taken = {i for i, lease in tenant.leases.items() if key in lease.taken}
                _check(state, taken, key)

    def _hold(self, request: Reservation, states: list[_Stated]) -> Hold:
        now = self._now()
        standings, shadowed = [], []
        for limit, state in states:
            standing = state.standing(limit, _seconds_left(limit, now))
            standings.append(standing)
            if _is_shadowed(limit, standing, is_held=state.holds(request.request_id)):
                shadowed.append(limit)
        return Hold(request, tuple(standings), tuple(shadowed))

    def _sweep_sometimes(self, now_ns: int) -> None:
        """Forget states that a new one would not differ from, and budgets of months long over."""
        self._num_reserved += 1
        if self._num_reserved % SWEEP_EVERY:
            return
        before = self._now() - KEEP_BUDGETS
        for tenant in self._tenants.values():
            for key, state in list(tenant.states.items()):
                state.advance(now_ns)
                is_past = key[3] is not None and key[3].end < before
                if is_past or state.is_idle():
                    tenant.replace(key, None)


def key_of(limit: ScopedLimit) -> Key:
    """Return what tells a limit's state from those of others."""
    period = limit.budget.period if limit.budget else None
    return limit.scope, limit.scope_id, limit.dimension, period


def _budgets(request: Reservation) -> list[ScopedLimit]:
    return [limit for limit in request.limits if limit.kind == "budget"]


def epoch_of(limit: ScopedLimit) -> int:
    """Return the epoch of a budget."""
    assert limit.budget is not None, f"{limit.name} is a budget without a month"
    return limit.budget.epoch


def _seconds_left(limit: ScopedLimit, now: datetime) -> float:
    if limit.budget is None:
        return 0.0
    return max(0.0, (limit.budget.period.end - now).total_seconds())


def _new_state(limit: ScopedLimit, now_ns: int) -> LimitState:
    if limit.kind == "rate":
        return RateState(Bucket(limit.value, limit.burst, now_ns))
    return GaugeState()


def _refuse_what_does_not_fit(request: Reservation, states: list[_Stated]) -> list[_Stated]:
    """Raise for what is worst; return the limits that the request is to be counted in.

    A limit in shadow mode does not count what it would have refused, so that it tells what it would
    do if it were enforced; a budget counts all, as the database does.
    """
    fitting: list[_Stated] = []
    refusing: list[tuple[bool, float, ScopedLimit]] = []
    for limit, state in states:
        if state.holds(request.request_id):
            continue
        amount = request.worst.of(limit.dimension)
        wait_ns = state.wait_ns(limit, amount) if amount else 0
        if wait_ns and limit.mode == "enforce":
            wait = wait_ns if limit.budget is None else limit.budget.period.end.timestamp()
            refusing.append((limit.budget is not None, wait, limit))
        elif not wait_ns or limit.kind == "budget":
            fitting.append((limit, state))
    if not refusing:
        return fitting
    _, wait, worst = max(refusing, key=lambda each: each[:2])
    if worst.budget is not None:
        raise BudgetExhausted(worst, worst.budget.period.end)
    raise QuotaExceeded(worst, wait / NS_PER_S)


def _is_shadowed(limit: ScopedLimit, standing: Standing, *, is_held: bool) -> bool:
    """Whether a limit would have refused a request that was admitted."""
    if limit.mode == "enforce":
        return False
    return standing.used > limit.value if limit.kind == "budget" else not is_held


def _check(state: LimitState, taken: set[str], key: Key) -> None:
    """Raise AssertionError unless a state holds what the leases say, and adds up."""
    match state:
        case RateState(bucket):
            floors = list(bucket.floors.values())
            assert bucket.floors.keys() == taken, key
            assert sorted(floors, reverse=True) == floors, key
            assert all(0 <= floor <= bucket.level for floor in floors), key
        case GaugeState(amounts, used):
            assert amounts.keys() == taken, key
            assert sum(amounts.values()) == used, key
        case BudgetState():
            assert sum(state.reserved.values()) == state.sum_reserved, key
