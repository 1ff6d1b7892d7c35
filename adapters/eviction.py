"""Which adapter goes first when memory is needed. Pure Python; no clock."""

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
