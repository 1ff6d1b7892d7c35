"""Which adapters requests ask for, and how soon each may be asked for again. Pure Python; no clock.

Time is counted in requests: one that arrives, for whichever adapter, is a tick. So an estimate
means the same at any load, and nothing is forgotten while nobody comes.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass
from heapq import nlargest
from math import exp

from loraplex.adapters.spec import AdapterKey

_SHORTEST_MEMORY = 256
"""Ticks after which a request counts for 1/e, where few adapters are known."""
_TICKS_PER_ADAPTER = 2
"""The same for each known one: estimates need to have seen a few requests for most of them."""
_MAX_KNOWN = 8192
"""Adapters that are remembered, beside those that requests wait for."""
_FIXED_BYTES = 10_000_000
"""What any load costs, in bytes."""
_STORE_COST = 4.0
"""How much more it costs to read an adapter from the store and verify it than to copy it from the
host: 3 to 5 times, as measured by `loraplex bench residency` (`docs/residency.md`)."""
_WAITING_USES = 64.0
"""A request that waits is a use that is certain and near, and worth so many that may come."""
_HINTED_USES = 1.0
"""What a tenant has said that it will use is expected to be used once."""


@dataclass(slots=True)
class _Known:
    """One adapter."""

    num_bytes: int
    uses: float
    """Requests that arrived, each discounted by its age, as of tick `as_of`."""
    as_of: int
    num_waiting: int = 0
    is_hinted: bool = False


class Demand:
    """Counts requests by adapter, those that wait and those that came. Belongs to one thread."""

    def __init__(self, near: Container[AdapterKey] = ()) -> None:
        """`near` are adapters that the host keeps, so that a load costs less."""
        self._near = near
        self._known: dict[AdapterKey, _Known] = {}
        self._most_known = _MAX_KNOWN
        self._tick = 0

    @property
    def num_waiting(self) -> int:
        """Requests that wait, on all adapters together."""
        return sum(known.num_waiting for known in self._known.values())

    def arrived(self, key: AdapterKey, num_bytes: int) -> None:
        """A request has come for an adapter of so many bytes. Whether it waits is said apart."""
        self._tick += 1
        known = self._learn(key, num_bytes)
        known.uses, known.as_of = self._uses(known) + 1.0, self._tick
        known.is_hinted = False  # what was expected is there

    def hint(self, key: AdapterKey, num_bytes: int) -> None:
        """A tenant expects to use an adapter of so many bytes once, until a request for it comes or
        the hint ends. What is hinted is not forgotten."""
        self._learn(key, num_bytes).is_hinted = True

    def end_hint(self, key: AdapterKey) -> None:
        """It is no longer expected, if it was."""
        known = self._known.get(key)
        if known is not None:
            known.is_hinted = False

    def is_hinted(self, key: AdapterKey) -> bool:
        """True if its tenant expects to use it, and no request for it has come since."""
        known = self._known.get(key)
        return known is not None and known.is_hinted

    def waits(self, key: AdapterKey, num_bytes: int) -> None:
        """One more request waits that needs an adapter of so many bytes: a new one, or one that
        ran. What is waited for is not forgotten; what is only used may have been."""
        self._learn(key, num_bytes).num_waiting += 1

    def waits_no_more(self, key: AdapterKey) -> None:
        """One of them runs or has ended."""
        self._known[key].num_waiting -= 1

    def is_awaited(self, key: AdapterKey) -> bool:
        """True if a request that waits needs it."""
        known = self._known.get(key)
        return known is not None and known.num_waiting > 0

    def num_waiting_for(self, key: AdapterKey) -> int:
        """Requests that wait and need it."""
        known = self._known.get(key)
        return 0 if known is None else known.num_waiting

    def awaited(self) -> Iterator[AdapterKey]:
        """Adapters that requests wait for."""
        return (key for key, known in self._known.items() if known.num_waiting)

    def num_bytes(self, key: AdapterKey) -> int:
        """Its size; 0 if it is not known."""
        known = self._known.get(key)
        return 0 if known is None else known.num_bytes

    def worth(self, key: AdapterKey) -> float:
        """What it is worth to have it in the device's memory: expected uses soon × what a load
        costs, in bytes copied from the host.

        Requests that wait for one load count each (https://doi.org/10.1145/3387514.3405883): the
        load of an adapter makes all of them late.
        """
        known = self._known.get(key)
        if known is None:
            return 0.0
        uses = self._uses(known) + _WAITING_USES * known.num_waiting
        uses += _HINTED_USES * known.is_hinted
        cost = known.num_bytes + _FIXED_BYTES
        return uses * (cost if key in self._near else _STORE_COST * cost)

    def density(self, key: AdapterKey) -> float:
        """Its worth for each byte of memory that it takes."""
        known = self._known.get(key)
        return 0.0 if known is None else self.worth(key) / max(1, known.num_bytes)

    def forget(self, key: AdapterKey) -> None:
        """Expect no more requests for it than those that wait."""
        known = self._known.get(key)
        if known is not None:
            known.uses, known.is_hinted = 0.0, False

    def _learn(self, key: AdapterKey, num_bytes: int) -> _Known:
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= self._most_known:
                self._forget_some()
            known = self._known[key] = _Known(num_bytes, 0.0, self._tick)
        return known

    def _uses(self, known: _Known) -> float:
        memory = max(_SHORTEST_MEMORY, _TICKS_PER_ADAPTER * len(self._known))
        return known.uses * exp((known.as_of - self._tick) / memory)

    def _forget_some(self) -> None:
        """Keep the half that has been asked for most, and all that is waited for or hinted."""
        kept = nlargest(_MAX_KNOWN // 2, self._known, key=lambda key: self._uses(self._known[key]))
        most = set(kept)
        self._known = {
            k: v for k, v in self._known.items() if k in most or v.num_waiting or v.is_hinted
        }
        self._most_known = max(_MAX_KNOWN, 2 * len(self._known))
