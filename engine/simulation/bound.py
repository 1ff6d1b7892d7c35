"""How much of its bound on unfairness a policy of deficits uses."""

from collections.abc import Sequence

import numpy as np

from loraplex.engine.cost_features import Floats
from loraplex.engine.fair_settings import FairSettings
from loraplex.engine.fairness import FairShare


class BoundUse:
    """Watches deficits, step by step. Over a time in which two tenants of weight 1 wait, what one
    was charged more than the other is how far the difference of their deficits has moved."""

    def __init__(self, share: FairShare, tenants: Sequence[str]) -> None:
        self._share = share
        self._number = {tenant: i for i, tenant in enumerate(tenants)}
        size = (len(tenants), len(tenants))
        self._least: Floats = np.full(size, np.inf)
        self._most: Floats = np.full(size, -np.inf)
        self.widest_ms = 0.0
        """The most that one was charged more than another."""

    def look(self) -> None:
        """Once after each step."""
        waits = np.zeros(len(self._number), bool)
        deficits = np.zeros(len(self._number))
        for tenant in self._share.waiting:
            waits[self._number[tenant]] = True
            deficits[self._number[tenant]] = self._share.deficit_ms(tenant)
        both = waits[:, None] & waits
        difference = deficits[:, None] - deficits
        self._least = np.where(both, np.minimum(self._least, difference), np.inf)
        self._most = np.where(both, np.maximum(self._most, difference), -np.inf)
        if both.any():
            self.widest_ms = max(self.widest_ms, float((self._most - self._least)[both].max()))


def bound_ms(settings: FairSettings, largest_ms: float) -> float:
    """`FairShare`'s bound for tenants of weight 1, if no request costs more than `largest_ms`."""
    overdraft_ms = settings.overdraft_ms
    open_ms = settings.max_open * (2 * largest_ms + overdraft_ms)
    credit_ms = max(overdraft_ms, settings.max_drain_ms)
    return 2 * settings.quantum_ms + 2 * (open_ms + credit_ms)
