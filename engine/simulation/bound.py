"""How much of its bound on unfairness a policy uses."""

import numpy as np

from loraplex.engine.cost_features import Floats
from loraplex.engine.fairness import FairShare


class BoundUse:
    """Watches deficits: over any time in which two tenants wait, what one was charged more than the
    other is by how much the difference of their deficits has moved."""

    def __init__(self, share: FairShare, tenants: list[str], bound_ms: float) -> None:
        """`bound_ms` is for tenants of weight 1."""
        self._share = share
        self._tenants = tenants
        self._bound_ms = bound_ms
        size = (len(tenants), len(tenants))
        self._least: Floats = np.full(size, np.inf)
        self._most: Floats = np.full(size, -np.inf)
        self._widest_ms = 0.0

    @property
    def used(self) -> float:
        """The largest part of the bound that two tenants' difference had."""
        return self._widest_ms / self._bound_ms

    def look(self, waiting: set[str]) -> None:
        """Once a step: `waiting` are tenants that have waited since the last look."""
        waits = np.array([tenant in waiting for tenant in self._tenants])
        deficits = np.array(
            [self._share.deficit_ms(t) if t in waiting else 0.0 for t in self._tenants]
        )
        both = waits[:, None] & waits
        difference = deficits[:, None] - deficits
        self._least = np.where(both, np.minimum(self._least, difference), np.inf)
        self._most = np.where(both, np.maximum(self._most, difference), -np.inf)
        if both.any():
            self._widest_ms = max(self._widest_ms, float((self._most - self._least)[both].max()))
