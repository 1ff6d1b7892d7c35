"""The last requests that limits refused, of each tenant: why somebody was throttled."""

from collections import OrderedDict, deque
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime

from loraplex.tenants.errors import BudgetExhausted, QuotaExceeded, RequestExceedsLimit
from loraplex.tenants.reservations import Hold
from loraplex.tenants.scoped_limits import ScopedLimit

KEPT = 50
"""Of each tenant."""
MAX_TENANTS = 1000


@dataclass(frozen=True, slots=True)
class Refusal:
    """One request that was refused."""

    at: datetime
    request_id: str
    limit: ScopedLimit
    message: str
    """What the client was told; of limits that refuse nothing, that it would have been."""


class Refusals:
    """What this process refused; forgotten with it."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, deque[Refusal]] = OrderedDict()

    async def noted(
        self, reserving: Awaitable[Hold], tenant_id: str, request_id: str, at: datetime
    ) -> Hold:
        """The hold, once it is there; limits that refused it, or would have, are remembered."""
        try:
            hold = await reserving
        except (QuotaExceeded, BudgetExhausted, RequestExceedsLimit) as error:
            self.note(tenant_id, Refusal(at, request_id, error.limit, str(error)))
            raise
        for limit in hold.shadowed:
            told = "It would have been refused; in shadow mode it was not."
            self.note(tenant_id, Refusal(at, request_id, limit, told))
        return hold

    def note(self, tenant_id: str, refusal: Refusal) -> None:
        """Remember one, and forget the oldest."""
        self._of.setdefault(tenant_id, deque(maxlen=KEPT)).append(refusal)
        self._of.move_to_end(tenant_id)
        if len(self._of) > MAX_TENANTS:
            self._of.popitem(last=False)

    def of(self, tenant_id: str) -> list[Refusal]:
        """A tenant's, newest first."""
        return list(reversed(self._of.get(tenant_id, ())))
