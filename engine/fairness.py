"""Fair shares between tenants: deficits in milliseconds of the machine. Pure Python.

Deficit round robin (https://doi.org/10.1109/90.502236), as locality-aware fair serving uses it for
requests (https://arxiv.org/abs/2501.14312), with three changes: the unit is the machine's time, so
that adapter loads and long contexts are paid for; the whole predicted cost of a request is charged
when it is admitted, corrected by what is measured while it runs, and what was not used is given
back at its end; and deficits are refilled only when no tenant that waits is eligible, by as many
quanta at once as make one eligible.

With the quantum Q, the overdraft D, the largest credit E on which a request is charged (at least
D) and, of tenant f, the weight w, the cap N on charges that are open at a time, and the cap C on
what one costs,

    -(N (C + D) + E)  <  deficit  <=  Q w + N C

From below: a tenant is charged for a request only while its deficit is positive, or above -E. Take
from the deficit what its open charges may yet add to it: a new charge moves this to no less than -N
(C + D) - E, and nothing else makes it smaller. From above: add to the deficit what its open charges
may yet give back, and what it has paid for those it pushed out, which are open too; only refills
raise this, and they happen at deficits of 0 or less, by steps that end at Q w or below. While two
tenants wait both get the same quanta, so what they are charged or use meanwhile differs, by weight,
by at most the sum of both widths:

    |W_f / w_f - W_g / w_g|  <=  2 Q + (U_f + E) / w_f + (U_g + E) / w_g,   U = N (2 C + D)

The order in which eligible tenants are served does not enter. `docs/scheduling.md` has the proof.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, nsmallest
from itertools import islice
from math import floor


@dataclass(slots=True)
class _Account:
    """One tenant's share."""

    weight: float
    deficit_ms: float
    """As of refill number `as_of`; while the tenant waits, later ones are still to be added."""
    as_of: int
    waits: bool = False
    num_open: int = 0
    """Charges that are not closed."""
    due: int = 0
    """Refill that makes it eligible, while it waits and is not."""


@dataclass(slots=True)
class _Charge:
    """What one request was charged, and what it used of it."""

    tenant: str
    charged_ms: float
    prepaid_ms: float = 0.0
    """What others have paid for it and it has not used."""
    used_ms: float = 0.0
    caused_ms: float = 0.0
    """What it made others compute again, or will."""


@dataclass(frozen=True, slots=True)
class _Payment:
    """What was paid for work that a request that waits was predicted to do again."""

    payer: str
    """The request."""
    tenant: str
    ms: float


def _note_nothing(tenant: str, eligible: bool) -> None:
    pass


class FairShare:
    """Deficits of tenants. Belongs to one thread. All but `refill` takes constant or logarithmic
    time."""

    def __init__(
        self,
        quantum_ms: float,
        overdraft_ms: float = 0.0,
        on_change: Callable[[str, bool], None] = _note_nothing,
    ) -> None:
        """`quantum_ms` is what a refill gives a tenant of weight 1; `overdraft_ms` is how far a
        tenant may go below zero to fill gaps that no eligible tenant can use, and what one request
        may be charged for work that it undid; `on_change` is told of waiting tenants that have
        become eligible, or are no longer."""
        if quantum_ms <= 0 or overdraft_ms < 0:
            raise ValueError("the quantum must be positive and the overdraft not negative")
        self._quantum_ms = quantum_ms
        self._overdraft_ms = overdraft_ms
        self._on_change = on_change
        self._accounts: dict[str, _Account] = {}
        self._charges: dict[str, _Charge] = {}
        self._prepaid_ms: dict[str, float] = {}
        self._payments: dict[str, _Payment] = {}
        """By whom they are for, until that is admitted again."""
        self._eligible: dict[str, None] = {}
        self._due: list[tuple[int, str]] = []
        """A heap; an entry counts if it is what the tenant's account says."""
        self._num_waiting = 0
        self._num_refills = 0

    @property
    def num_refills(self) -> int:
        """Quanta that every waiting tenant has been given."""
        return self._num_refills

    @property
    def num_open(self) -> int:
        """Charges that are not closed."""
        return len(self._charges)

    @property
    def eligible(self) -> list[str]:
        """Waiting tenants whose next request may be charged now."""
        return list(self._eligible)

    def next_tenants(self, at_most: int) -> list[str]:
        """Waiting tenants: those that are eligible, then those that refills make so first."""
        first = list(islice(self._eligible, at_most))
        missing = at_most - len(first)
        if missing <= 0:
            return first
        # The heap's beginning holds about the smallest, and is all that is looked at.
        num_looked_at = 4 * at_most
        due = {entry for entry in islice(self._due, num_looked_at) if self._is_due(*entry)}
        if len(due) < missing and len(self._due) > num_looked_at:
            self._drop_stale()
            due = set(self._due[:num_looked_at])
        return first + [tenant for _, tenant in nsmallest(missing, due)]

    @property
    def waiting(self) -> set[str]:
        """Tenants that have a request that could run, were it their turn."""
        return {tenant for tenant, account in self._accounts.items() if account.waits}

    @property
    def can_refill(self) -> bool:
        """True if tenants wait and none of them is eligible: only then may deficits grow."""
        return self._num_waiting > 0 and not self._eligible

    def deficit_ms(self, tenant: str) -> float:
        """What a tenant may still be charged before others come first."""
        account = self._accounts[tenant]
        missed = self._num_refills - account.as_of if account.waits else 0
        return account.deficit_ms + missed * self._quantum_ms * account.weight

    def debt_ms(self, tenant: str) -> float:
        """What others must be given, by weight, before the tenant is eligible; 0 if it is, or will
        be as soon as it waits."""
        return max(0.0, -self.deficit_ms(tenant)) if tenant in self._accounts else 0.0

    def is_eligible(self, tenant: str) -> bool:
        """True if the tenant waits and its next request may be charged now."""
        return tenant in self._eligible

    def wait(self, tenant: str, weight: float) -> None:
        """The tenant has a request that could run, were it its turn.

        One that did not wait before has kept its debt less the refills that it missed, and has
        gathered at most one quantum.
        """
        account = self._accounts.get(tenant)
        if account is None:
            account = _Account(weight, self._quantum_ms * weight, self._num_refills)
            self._accounts[tenant] = account
        if account.waits:
            self._settle(account)
            account.weight = weight
        else:
            account.deficit_ms = self._after_absence_ms(account, weight)
            account.weight, account.waits, account.as_of = weight, True, self._num_refills
            self._num_waiting += 1
        self._place(tenant, account)

    def stop_waiting(self, tenant: str) -> None:
        """No request of the tenant could run now, were it its turn."""
        account = self._accounts.get(tenant)
        if account is None:
            return
        if account.waits:
            self._settle(account)
            account.waits = False
            self._num_waiting -= 1
            self._place(tenant, account)
        self._forget_idle(tenant, account)

    def may_fill_gap(self, tenant: str, cost_ms: float) -> bool:
        """True if a tenant may be charged so much for what no eligible one can use."""
        return self.deficit_ms(tenant) - cost_ms > -self._overdraft_ms

    def refill(self) -> None:
        """Give quanta to all tenants that wait, as many as make one of them eligible.

        Only where `can_refill`; it is what bounds how far they may drift apart.
        """
        assert self.can_refill
        while not self._eligible:
            self._num_refills = max(self._num_refills, self._due[0][0])
            while self._due and self._due[0][0] <= self._num_refills:
                due, tenant = heappop(self._due)
                if self._is_due(due, tenant):
                    account = self._accounts[tenant]
                    self._settle(account)
                    self._place(tenant, account)

    def charge(self, key: str, tenant: str, predicted_ms: float) -> None:
        """A request is admitted: charge all of its predicted cost, less what others have paid."""
        prepaid_ms = self._prepaid_ms.pop(key, 0.0)
        charge = _Charge(tenant, max(0.0, predicted_ms - prepaid_ms), prepaid_ms)
        self._charges[key] = charge
        self._accounts[tenant].num_open += 1
        self._add(tenant, -charge.charged_ms)

    def use(self, key: str, used_ms: float) -> None:
        """A request has used some of the machine; what it uses beyond its charge is charged now."""
        charge = self._charges[key]
        if charge.prepaid_ms:
            from_prepaid = min(used_ms, charge.prepaid_ms)
            charge.prepaid_ms -= from_prepaid
            used_ms -= from_prepaid
        charge.used_ms += used_ms
        beyond_ms = charge.used_ms - charge.charged_ms
        if beyond_ms > 0:
            charge.charged_ms = charge.used_ms
            self._add(charge.tenant, -beyond_ms)

    def use_all(self, used_ms: Mapping[str, float]) -> None:
        """The same for many; those without a charge are not this one's."""
        charges = self._charges
        for key, ms in used_ms.items():
            charge = charges.get(key)
            if charge is None:
                continue
            if not charge.prepaid_ms and charge.used_ms + ms <= charge.charged_ms:
                charge.used_ms += ms
            else:
                self.use(key, ms)

    def close(self, key: str) -> float:
        """A request has ended, or begins anew: give back what it did not use; return what it used,
        in ms."""
        charge = self._charges.pop(key)
        self._payments.pop(key, None)
        if charge.prepaid_ms:
            self._prepaid_ms[key] = self._prepaid_ms.get(key, 0.0) + charge.prepaid_ms
        account = self._accounts[charge.tenant]
        account.num_open -= 1
        self._add(charge.tenant, charge.charged_ms - charge.used_ms)
        self._forget_idle(charge.tenant, account)
        return charge.used_ms

    def is_open(self, key: str) -> bool:
        """True from the charge of a request until it is closed."""
        return key in self._charges

    def prepay(self, payer: str, key: str, cost_ms: float) -> bool:
        """Charge a request for work that it undoes and another, `key`, must do again.

        False if that is more than one request may undo; then it must not.
        """
        charge = self._charges[payer]
        if charge.caused_ms + cost_ms > self._overdraft_ms:
            return False
        charge.caused_ms += cost_ms
        self._prepaid_ms[key] = self._prepaid_ms.get(key, 0.0) + cost_ms
        self._payments[key] = _Payment(payer, charge.tenant, cost_ms)
        self._add(charge.tenant, -cost_ms)
        return True

    def restore(self, key: str, cost_ms: float) -> None:
        """A request that was pushed out is admitted again, and bringing back what it had computed
        will cost so much: who has paid more for that is given back the rest."""
        payment = self._payments.pop(key, None)
        if payment is None:
            return
        charge = self._charges[key]
        unused_ms = min(payment.ms, charge.prepaid_ms) - cost_ms
        if unused_ms <= 0:
            return
        charge.prepaid_ms -= unused_ms
        if payment.payer in self._charges:
            self._charges[payment.payer].caused_ms -= unused_ms
        if payment.tenant in self._accounts:
            self._add(payment.tenant, unused_ms)

    def is_prepaid(self, key: str) -> bool:
        """True if another has just paid for work that a request with a charge must do again."""
        return key in self._prepaid_ms

    def resume(self, key: str) -> None:
        """A request goes on under its charge, and first uses up what others have paid for it."""
        charge = self._charges[key]
        charge.prepaid_ms += self._prepaid_ms.pop(key, 0.0)

    def forget(self, key: str) -> None:
        """A request ends for good; call it before `close`."""
        self._prepaid_ms.pop(key, None)
        if key in self._charges:
            self.restore(key, 0.0)
            self._charges[key].prepaid_ms = 0.0

    def check(self) -> None:
        """Assert that accounts, charges and order agree; holds between any two calls."""
        for tenant, account in self._accounts.items():
            is_eligible = account.waits and self.deficit_ms(tenant) > 0
            assert is_eligible == (tenant in self._eligible), "an eligible tenant is forgotten"
            num_open = sum(charge.tenant == tenant for charge in self._charges.values())
            assert account.num_open == num_open, "a charge is lost"
            if account.waits and not is_eligible:
                assert (account.due, tenant) in self._due, "a tenant waits for no refill"
                assert account.due > self._num_refills, "a refill was missed"
        assert self._eligible.keys() <= self._accounts.keys()
        assert self._num_waiting == sum(account.waits for account in self._accounts.values())
        assert all(c.charged_ms >= c.used_ms >= 0 for c in self._charges.values())

    def _is_due(self, due: int, tenant: str) -> bool:
        """True if an entry of the heap is still so."""
        account = self._accounts.get(tenant)
        return account is not None and account.waits and account.due == due

    def _settle(self, account: _Account) -> None:
        """Add the refills since it was looked at last."""
        missed = self._num_refills - account.as_of
        account.deficit_ms += missed * self._quantum_ms * account.weight
        account.as_of = self._num_refills

    def _add(self, tenant: str, ms: float) -> None:
        account = self._accounts[tenant]
        if account.waits:
            self._settle(account)
        account.deficit_ms += ms
        self._place(tenant, account)

    def _place(self, tenant: str, account: _Account) -> None:
        """Put a settled account where its deficit belongs: eligible, or due at some refill."""
        was_eligible = tenant in self._eligible
        if not account.waits:
            self._eligible.pop(tenant, None)
            return
        is_eligible = account.deficit_ms > 0
        if is_eligible:
            self._eligible[tenant] = None
        else:
            self._eligible.pop(tenant, None)
            account.due = self._num_refills + self._quanta_until_eligible(account)
            self._push(account.due, tenant)
        if is_eligible is not was_eligible:
            self._on_change(tenant, is_eligible)

    def _push(self, due: int, tenant: str) -> None:
        heappush(self._due, (due, tenant))
        if len(self._due) > 64 + 4 * self._num_waiting:
            self._drop_stale()

    def _drop_stale(self) -> None:
        live = {(a.due, t) for t, a in self._accounts.items() if a.waits and a.deficit_ms <= 0}
        self._due = list(live)
        heapify(self._due)

    def _quanta_until_eligible(self, account: _Account) -> int:
        quantum_ms = self._quantum_ms * account.weight
        return floor(-account.deficit_ms / quantum_ms) + 1

    def _after_absence_ms(self, account: _Account, weight: float) -> float:
        quantum_ms = self._quantum_ms * weight
        missed = self._num_refills - account.as_of
        regained = min(account.deficit_ms + missed * quantum_ms, quantum_ms)
        return max(account.deficit_ms, regained)

    def _forget_idle(self, tenant: str, account: _Account) -> None:
        """Drop an account that says no more than a new one would."""
        if account.waits or account.num_open:
            return
        if not self._num_waiting and not self._charges:
            self._accounts.clear()  # nobody competes with anybody: all begins anew
        elif self._after_absence_ms(account, account.weight) >= self._quantum_ms * account.weight:
            del self._accounts[tenant]
