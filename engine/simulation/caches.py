"""Ways to choose which adapter goes that no engine would take: they know what will come, or are
another system's."""

from collections import Counter
from collections.abc import Sequence
from math import ceil

from loraplex.adapters.demand import Demand
from loraplex.adapters.spec import AdapterKey


class ChameleonScore:
    """Chameleon's score (https://arxiv.org/abs/2411.17741): the lowest goes first of
    `0.45 uses + 0.10 recency + 0.45 size`, each relative to the largest among the candidates."""

    def __init__(self) -> None:
        self._bytes: dict[AdapterKey, int] = {}
        self._uses: Counter[AdapterKey] = Counter()

    def loaded(self, key: AdapterKey, num_bytes: int) -> None:
        """Remember its size."""
        self._bytes[key] = num_bytes

    def used(self, key: AdapterKey) -> None:
        """Count, for as long as the run goes."""
        self._uses[key] += 1

    def evicted(self, key: AdapterKey) -> None:
        """Its count stays."""

    def order(self, candidates: Sequence[AdapterKey], demand: Demand) -> Sequence[AdapterKey]:  # noqa: ARG002  of the protocol
        """By score."""
        most_uses = max(self._uses[key] for key in candidates) or 1
        most_bytes = max(self._bytes[key] for key in candidates) or 1
        score = {
            key: 0.45 * self._uses[key] / most_uses
            + 0.10 * (place + 1) / len(candidates)
            + 0.45 * self._bytes[key] / most_bytes
            for place, key in enumerate(candidates)
        }
        return sorted(candidates, key=score.__getitem__)


class Pinned:
    """The tenth of all adapters that requests ask for most goes last, as if an operator who knew
    the whole trace had pinned them; of the others the one that was touched longest ago goes first.
    """

    _SHARE = 0.1

    def __init__(self, uses: Sequence[AdapterKey]) -> None:
        """`uses`: the adapters of all requests."""
        wanted = Counter(uses).most_common()
        self._pinned = frozenset(key for key, _ in wanted[: ceil(len(wanted) * self._SHARE)])

    def loaded(self, key: AdapterKey, num_bytes: int) -> None:
        """Nothing to remember; so with the next two."""

    def used(self, key: AdapterKey) -> None:
        """See `loaded`."""

    def evicted(self, key: AdapterKey) -> None:
        """See `loaded`."""

    def order(self, candidates: Sequence[AdapterKey], demand: Demand) -> Sequence[AdapterKey]:  # noqa: ARG002  of the protocol
        """Pinned ones last, else as they come."""
        return sorted(candidates, key=self._pinned.__contains__)


class Belady:
    """The one whose next use is farthest off goes first: it knows all requests that will come.

    Uses are taken to come in the order of arrival, as far as the policy of admission keeps to it.
    """

    def __init__(self, uses: Sequence[AdapterKey]) -> None:
        """`uses`: the adapters of all requests, in the order of their arrival."""
        self._places: dict[AdapterKey, list[int]] = {}
        for place, key in enumerate(uses):
            self._places.setdefault(key, []).append(place)
        self._num_uses: Counter[AdapterKey] = Counter()
        self._never = len(uses)

    def loaded(self, key: AdapterKey, num_bytes: int) -> None:
        """Nothing to remember."""

    def used(self, key: AdapterKey) -> None:
        """One of its uses is past."""
        self._num_uses[key] += 1

    def evicted(self, key: AdapterKey) -> None:
        """Nothing to learn."""

    def order(self, candidates: Sequence[AdapterKey], demand: Demand) -> Sequence[AdapterKey]:  # noqa: ARG002  of the protocol
        """By next use, farthest first."""
        return sorted(candidates, key=self._next_use, reverse=True)

    def _next_use(self, key: AdapterKey) -> int:
        places, past = self._places.get(key, []), self._num_uses[key]
        return places[past] if past < len(places) else self._never
