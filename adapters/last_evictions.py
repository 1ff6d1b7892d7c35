"""Which adapters went lately, and why."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from loraplex.adapters.residency_counts import Cause, TierName
from loraplex.adapters.spec import AdapterKey

NUM_EVICTIONS_KEPT = 64
"""Of the last ones of both tiers together."""


@dataclass(frozen=True, slots=True)
class Evicted:
    """One adapter that lost its memory in one tier."""

    key: AdapterKey
    tier: TierName
    cause: Cause
    at_s: float
    """By the residency's clock."""


class LastEvictions:
    """The last evictions, so that operators see which adapters went lately, and why."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` tells seconds."""
        self._clock = clock
        self._last: deque[Evicted] = deque(maxlen=NUM_EVICTIONS_KEPT)

    def note(self, key: AdapterKey, tier: TierName, cause: Cause) -> None:
        """It has lost its memory there now."""
        self._last.append(Evicted(key, tier, cause, self._clock()))

    def newest_first(self) -> tuple[Evicted, ...]:
        """Those that are kept, `NUM_EVICTIONS_KEPT` at most."""
        return tuple(reversed(self._last))
