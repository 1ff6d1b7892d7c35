"""Fair shares between tenants: deficits in predicted milliseconds of the machine. Pure Python.

Deficit round robin (https://doi.org/10.1109/90.502236), as locality-aware fair serving uses it for
requests (https://arxiv.org/abs/2501.14312), with three changes: the unit is the machine's time, so
that adapter loads and long contexts are paid for; the whole predicted cost of a request is charged
when it is admitted, corrected by what is measured while it runs, and what was not used is given
back at its end; and deficits are refilled only when no tenant that waits is eligible, by as many
quanta at once as make one eligible.

With the quantum Q and, of tenant f, the weight w_f, the cap C_f on the cost of one request, and the
cap N_f on its requests that run at a time, the deficit stays within

    -(C_f + N_f * C_f + D)  <  deficit_f  <=  Q * w_f + N_f * C_f

since a tenant is admitted only while its deficit is positive (or, to fill gaps, above -D), and all
that can be charged later, or given back, belongs to requests that run. Over an interval in which
two tenants wait all the time both get the same number of refills, so that what they are charged,
by weight, differs by at most 2Q + U_f/w_f + U_g/w_g + D (1/w_f + 1/w_g), with U = (2N + 1) C. The
order in which eligible tenants run does not enter.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil


@dataclass(slots=True)
class _Account:
    """One tenant's share."""

    weight: float
    deficit_ms: float
    num_open: int = 0
    """Charges that are not closed."""
    waits: bool = False
    refills_seen: int = 0
    """Refills until it stopped to wait."""


@dataclass(slots=True)
class _Charge:
    """What one request was charged, and what it used of it."""

    tenant: str
    charged_ms: float
    used_ms: float = 0.0


class FairShare:
    """Deficits of tenants. Belongs to one thread."""

    def __init__(self, quantum_ms: float, overdraft_ms: float = 0.0) -> None:
        """`quantum_ms` is what a refill gives a tenant of weight 1; `overdraft_ms` is how far a
        tenant may go below zero to fill gaps that no eligible tenant can use."""
        if quantum_ms <= 0 or overdraft_ms < 0:
            raise ValueError("the quantum must be positive and the overdraft not negative")
        self._quantum_ms = quantum_ms
        self._overdraft_ms = overdraft_ms
        self._accounts: dict[str, _Account] = {}
        self._charges: dict[str, _Charge] = {}
        self._num_refills = 0

    @property
    def num_refills(self) -> int:
        """Quanta that every waiting tenant has been given."""
        return self._num_refills

    def deficit_ms(self, tenant: str) -> float:
        """What a tenant may still be charged before others come first."""
        return self._accounts[tenant].deficit_ms

    def wait(self, tenant: str, weight: float) -> None:
        """The tenant has a request that waits.

        One that did not wait before has kept its debt less the refills that it missed, and has
        gathered at most one quantum.
        """
        account = self._accounts.get(tenant)
        if account is None:
            account = _Account(weight, self._quantum_ms * weight)
            self._accounts[tenant] = account
        elif not account.waits:
            missed = self._num_refills - account.refills_seen
            account.deficit_ms = max(
                account.deficit_ms,
                min(account.deficit_ms + missed * self._quantum_ms * weight, self._quantum_ms * weight),
            )
        account.weight = weight
        account.waits = True

    def stop_waiting(self, tenant: str) -> None:
        """No request of the tenant waits any more."""
        account = self._accounts[tenant]
        account.waits = False
        account.refills_seen = self._num_refills

    def is_eligible(self, tenant: str) -> bool:
        """True if its next request may be admitted now."""
        return self._accounts[tenant].deficit_ms > 0

    def may_fill_gap(self, tenant: str, cost_ms: float) -> bool:
        """True if a tenant that is not eligible may use what no eligible one can."""
        return self._accounts[tenant].deficit_ms - cost_ms > -self._overdraft_ms

    def refill(self, tenants: Iterable[str]) -> None:
        """Give quanta to all tenants that wait, as many as make one of them eligible.

        Call it only when none of them is; it is what bounds how far they may drift apart.
        """
        accounts = [self._accounts[tenant] for tenant in tenants]
        assert all(account.deficit_ms <= 0 for account in accounts)
        quanta = min(self._quanta_until_eligible(account) for account in accounts)
        self._num_refills += quanta
        for account in accounts:
            account.deficit_ms += quanta * self._quantum_ms * account.weight

    def charge(self, request_id: str, tenant: str, predicted_ms: float) -> None:
        """A request is admitted: charge all of its predicted cost."""
        self._charges[request_id] = _Charge(tenant, predicted_ms)
        account = self._accounts[tenant]
        account.deficit_ms -= predicted_ms
        account.num_open += 1

    def use(self, request_id: str, used_ms: float) -> None:
        """A request has used some of the machine; what it uses beyond its charge is charged now."""
        charge = self._charges[request_id]
        charge.used_ms += used_ms
        if charge.used_ms > charge.charged_ms:
            self._accounts[charge.tenant].deficit_ms -= charge.used_ms - charge.charged_ms
            charge.charged_ms = charge.used_ms

    def close(self, request_id: str) -> float:
        """A request has ended: give back what it did not use; return what it used, in ms."""
        charge = self._charges.pop(request_id)
        account = self._accounts[charge.tenant]
        account.deficit_ms += charge.charged_ms - charge.used_ms
        account.num_open -= 1
        return charge.used_ms

    def fine(self, tenant: str, cost_ms: float) -> None:
        """Charge a tenant for work that it caused and that is in no request's charge."""
        self._accounts[tenant].deficit_ms -= cost_ms

    def _quanta_until_eligible(self, account: _Account) -> int:
        quantum_ms = self._quantum_ms * account.weight
        return max(1, ceil(-account.deficit_ms / quantum_ms + 1e-9))
