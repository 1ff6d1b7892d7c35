"""Which adapter goes first when memory is needed. Pure Python; no clock.

A worker uses `LeastWorth`. The others are what caches do elsewhere: `loraplex simulate --cache`
compares them.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from loraplex.adapters.demand import Demand
from loraplex.adapters.spec import AdapterKey


class Eviction(Protocol):
    """Orders adapters that may go; the residency tells it what happens to each."""

    def loaded(self, key: AdapterKey, num_bytes: int) -> None:
        """Its load has begun."""
        ...

    def used(self, key: AdapterKey) -> None:
        """A request has taken a lease on it."""
        ...

    def evicted(self, key: AdapterKey) -> None:
        """It has gone."""
        ...

    def order(self, candidates: Sequence[AdapterKey], demand: Demand) -> Sequence[AdapterKey]:
        """The candidates, the first to go first. They come from the least to the most recently
        touched; `demand` tells what requests ask for."""
        ...


class LeastWorth:
    """The one goes first whose memory is worth least: expected uses × cost of a load ÷ bytes.

    Expected are the requests that wait for it, and those that will come if they come as they did
    of late. So what waiting requests need goes last, and first of it what fewest wait for.
    """

    def loaded(self, key: AdapterKey, num_bytes: int) -> None:
        """The demand knows; so with the next two."""

    def used(self, key: AdapterKey) -> None:
        """See `loaded`."""

    def evicted(self, key: AdapterKey) -> None:
        """See `loaded`."""

    def order(self, candidates: Sequence[AdapterKey], demand: Demand) -> Sequence[AdapterKey]:
        """By worth for each byte; of equals, the one touched longest ago first."""
        return sorted(candidates, key=demand.density)


class LeastRecentlyUsed:
    """The one that was touched longest ago goes first."""

    def loaded(self, key: AdapterKey, num_bytes: int) -> None:
        """The residency keeps their order; so with the next two."""

    def used(self, key: AdapterKey) -> None:
        """See `loaded`."""

    def evicted(self, key: AdapterKey) -> None:
        """See `loaded`."""

    def order(self, candidates: Sequence[AdapterKey], demand: Demand) -> Sequence[AdapterKey]:  # noqa: ARG002  of the protocol
        """As they come."""
        return candidates


class LeastFrequentlyUsed:
    """The one that was used least since it was loaded goes first; of equals, the one that was
    touched longest ago."""

    def __init__(self) -> None:
        self._uses: Counter[AdapterKey] = Counter()

    def loaded(self, key: AdapterKey, num_bytes: int) -> None:  # noqa: ARG002  of the protocol
        """Begin to count anew."""
        self._uses[key] = 0

    def used(self, key: AdapterKey) -> None:
        """Count."""
        self._uses[key] += 1

    def evicted(self, key: AdapterKey) -> None:
        """Forget it."""
        del self._uses[key]

    def order(self, candidates: Sequence[AdapterKey], demand: Demand) -> Sequence[AdapterKey]:  # noqa: ARG002  of the protocol
        """By uses."""
        return sorted(candidates, key=self._uses.__getitem__)


class GreedyDualSizeFrequency:
    """GDSF (Cherkasova, HP Labs 1998): the lowest of `age + uses × cost ÷ size` goes first.

    A load costs as much as it has bytes, plus what any load costs; so cost ÷ size is that of a
    constant over size, plus 1.
    """

    _FIXED_BYTES = 10_000_000

    def __init__(self) -> None:
        self._bytes: dict[AdapterKey, int] = {}
        self._uses: Counter[AdapterKey] = Counter()
        self._priority: dict[AdapterKey, float] = {}
        self._age = 0.0

    def loaded(self, key: AdapterKey, num_bytes: int) -> None:
        """Begin to count anew."""
        self._bytes[key] = max(1, num_bytes)
        self._uses[key] = 0
        self._rate(key)

    def used(self, key: AdapterKey) -> None:
        """Count."""
        self._uses[key] += 1
        self._rate(key)

    def evicted(self, key: AdapterKey) -> None:
        """All that come after are younger than what has gone."""
        self._age = max(self._age, self._priority.pop(key))

    def order(self, candidates: Sequence[AdapterKey], demand: Demand) -> Sequence[AdapterKey]:  # noqa: ARG002  of the protocol
        """By priority."""
        return sorted(candidates, key=self._priority.__getitem__)

    def _rate(self, key: AdapterKey) -> None:
        worth = 1.0 + self._FIXED_BYTES / self._bytes[key]
        self._priority[key] = self._age + self._uses[key] * worth
