"""Which resident adapter goes first when memory is needed. Pure Python; no clock."""

from collections.abc import Sequence
from typing import Protocol

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

    def order(self, candidates: Sequence[AdapterKey]) -> Sequence[AdapterKey]:
        """The candidates, the first to go first. They come from the least to the most recently
        touched."""
        ...


class LeastRecentlyUsed:
    """The one that was touched longest ago goes first."""

    def loaded(self, key: AdapterKey, num_bytes: int) -> None:
        """The residency keeps their order; so with the next two."""

    def used(self, key: AdapterKey) -> None:
        """See `loaded`."""

    def evicted(self, key: AdapterKey) -> None:
        """See `loaded`."""

    def order(self, candidates: Sequence[AdapterKey]) -> Sequence[AdapterKey]:
        """As they come."""
        return candidates
