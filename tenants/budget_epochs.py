"""Which reckonings of budgets count, as one process last saw: so that admission need not ask."""

from collections.abc import Iterable, Sequence
from itertools import islice

from loraplex.tenants import budgets
from loraplex.tenants.budgets import Budget, with_epoch
from loraplex.tenants.db import Database
from loraplex.tenants.reservations import Reckoning
from loraplex.tenants.scoped_limits import ScopedLimit

MAX_REMEMBERED = 20_000
NEVER = 0
"""The epoch of a budget that was never reckoned; no copy has it."""


class BudgetEpochs:
    """A memory that may be behind: whoever writes an intent finds out, and forgets."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._epochs: dict[Budget, int] = {}

    async def current(
        self, tenant_id: str, limits: Sequence[ScopedLimit]
    ) -> tuple[ScopedLimit, ...]:
        """Return the limits with the epochs of budgets; those that are not known here are read."""
        wanted = [Budget.of(tenant_id, limit) for limit in limits if limit.budget is not None]
        unknown = [budget for budget in wanted if budget not in self._epochs]
        if unknown:
            async with self._database.reader() as session:
                read = await budgets.epochs_of(session, unknown)
            self._remember((budget, read.get(budget, NEVER)) for budget in unknown)
        return tuple(
            limit
            if limit.budget is None
            else with_epoch(limit, self._epochs.get(Budget.of(tenant_id, limit), NEVER))
            for limit in limits
        )

    def forget(self, tenant_id: str, limits: Iterable[ScopedLimit]) -> None:
        """Read these again when they are next needed."""
        for limit in limits:
            if limit.budget is not None:
                self._epochs.pop(Budget.of(tenant_id, limit), None)

    def note(self, tenant_id: str, reckonings: Iterable[Reckoning]) -> None:
        """Remember what was just reckoned."""
        for reckoning in reckonings:
            budget = reckoning.limit.budget
            assert budget is not None
            self._remember([(Budget.of(tenant_id, reckoning.limit), budget.epoch)])

    def _remember(self, epochs: Iterable[tuple[Budget, int]]) -> None:
        self._epochs.update(epochs)
        excess = len(self._epochs) - MAX_REMEMBERED
        for budget in list(islice(self._epochs, max(0, excess))):
            del self._epochs[budget]
