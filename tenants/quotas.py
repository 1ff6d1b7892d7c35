"""Quotas: a reservation is a row with identity, never a counter delta.

A request reserves its worst case before it runs and settles what it used when it ends. Both are
idempotent by its id; of a hold that nobody settles, gauges are free again when its lease is over.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, Self

from loraplex.tenants.errors import HoldConflict
from loraplex.tenants.reservations import (
    Amounts,
    Hold,
    LapsedReservation,
    Reckoning,
    Reservation,
)
from loraplex.tenants.scoped_limits import ScopedLimit
from loraplex.tenants.standings import Standing

LEASE_S = 60.0
"""Three times the pause between renewals: of a gateway that died, gauges are free after this."""
FULL_RETRY_S = 1.0
"""When a gauge has room is not known; a second is what clients wait by default."""
KEEP_BUDGETS = timedelta(days=5)
"""After its month a budget is kept so long, for requests that began in it."""


@dataclass(frozen=True, slots=True)
class InUse:
    """Open holds of one tenant: their number, and sums of what they reserved."""

    requests: int
    tokens: int
    slots: int
    cost_micros: int

    @classmethod
    def of(cls, held: Sequence[Amounts]) -> Self:
        """Return the sums over holds."""
        return cls(
            requests=len(held),
            tokens=sum(each.input_tokens + each.output_tokens for each in held),
            slots=sum(each.slots for each in held),
            cost_micros=sum(each.cost_micros for each in held),
        )


class Quotas(Protocol):
    """Admission of requests against limits of tenants, projects, keys and adapters.

    Each limit counts a request's id at most once, so that any call may be repeated. Budgets are
    known to a store by epoch (`ScopedLimit.budget`): what it knows of another one is void, and
    `reserve` then raises BudgetsUnknown. Who catches that reckons their use from the database under
    a new epoch, calls `seed`, and reserves again with limits of that epoch.

    Every method of a store that other processes share may raise QuotaBackendUnavailable.
    """

    @property
    def is_degraded(self) -> bool:
        """True while the store that processes share is away, and each counts by itself."""
        ...

    async def reserve(self, request: Reservation) -> Hold:
        """Hold what the request may take of all its limits, or of none.

        The same request again, while its hold is open, gets that hold and takes nothing.

        Raises:
            RequestExceedsLimit: it is larger than a whole limit; it can never succeed.
            BudgetsUnknown: see above.
            BudgetExhausted: a budget has too little left; told before limits that free themselves.
            QuotaExceeded: a limit is used up for now: of several, the one that takes longest.
            HoldConflict: the request's id holds something else.
        """
        ...

    async def renew(self, hold: Hold) -> None:
        """Extend the lease of an open hold, from now; a request that runs long calls this."""
        ...

    async def settle(self, hold: Hold, actual: Amounts) -> None:
        """End the hold: what was not used is given back, what was used beyond it is taken too.

        No effect once it has ended. A hold whose lease is over is counted as used in full by rates,
        but its budgets still wait for this; whoever settles another process's request calls it
        with a hold of the same request, worst case and budgets.
        """
        ...

    async def release(self, hold: Hold) -> None:
        """End the hold of a request that never ran: all is given back, the request too."""
        ...

    async def seed(self, tenant_id: str, reckonings: Sequence[Reckoning]) -> None:
        """Replace what the store knows of budgets, unless it knows that epoch or a newer one."""
        ...

    async def lapsed(self, tenant_id: str, most: int) -> tuple[LapsedReservation, ...]:
        """Return up to `most` of what is reserved of budgets by requests whose leases have been
        over for another lease, the oldest first: what nobody has renewed or settled for so long.

        A reckoning leases what it finds reserved as if it were renewed then. Nothing while the
        store is away.
        """
        ...

    async def standings(
        self, tenant_id: str, limits: Sequence[ScopedLimit]
    ) -> tuple[Standing, ...]:
        """Return how these limits stand now; nothing is taken.

        Budgets that the store does not know are left out, as are limits that nobody counts while
        the store is away.
        """
        ...

    async def reckoned(self, tenant_id: str, limit: ScopedLimit) -> Reckoning | None:
        """Return what is counted of a budget, as if it were reckoned so; None if it is not known of
        the limit's epoch, or the store is away."""
        ...

    async def held(self, tenant_id: str) -> dict[str, Amounts]:
        """Return what each of the tenant's open holds reserves, by request id."""
        ...

    async def in_use(self, tenant_id: str) -> InUse:
        """Return what the tenant's open holds reserve."""
        ...

    async def check(self) -> None:
        """Raise AssertionError unless open holds and what is in use agree everywhere."""
        ...


def confirm_size(request: Reservation, held: Amounts) -> None:
    """Raise HoldConflict unless the request asks for what its id holds."""
    if held != request.worst:
        raise HoldConflict(
            f"Request {request.request_id} already holds {held}, so it cannot reserve "
            f"{request.worst}; give each request an id of its own."
        )
