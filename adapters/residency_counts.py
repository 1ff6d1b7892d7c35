"""What has happened to adapters in memory since the start."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from operator import add, sub
from types import MappingProxyType
from typing import Literal

from loraplex.adapters.spec import AdapterKey

TierName = Literal["device", "host"]
Cause = Literal["load", "prefetch", "kv", "drop"]
"""Why an adapter lost its memory: a request's load needed it, a prefetch was worth more,
requests needed it for their KV blocks, or its version was deleted."""
CAUSES: Mapping[TierName, tuple[Cause, ...]] = MappingProxyType(
    {"device": ("load", "prefetch", "kv", "drop"), "host": ("load", "drop")}
)
"""Those that a tier knows: the host's memory gives way to whatever is read."""

Route = Literal["resident", "prefetch", "wait", "join", "layer-wise", "assist"]
"""How a request came to run on its adapter: it was there; it was there for this request first,
since it was prefetched; the request waited for the load that it had caused, or for one that another
had; it began while layers were copied, or also had the host compute some of them."""


PrefetchCause = Literal["queue", "guess", "hint", "pin"]
"""Why an adapter was loaded before a request needed it: a request waits that will; it was pushed
out and may be asked for again; its tenant said that it would be; it is pinned."""


@dataclass(frozen=True, slots=True)
class PrefetchTally:
    """What became of prefetches; what is neither claimed nor wasted is still there."""

    num_started: int = 0
    num_claimed: int = 0
    num_wasted: int = 0
    started_bytes: int = 0
    wasted_bytes: int = 0

    def __add__(self, other: "PrefetchTally") -> "PrefetchTally":
        """Of both."""
        return PrefetchTally(*map(add, astuple(self), astuple(other)))

    def __sub__(self, before: "PrefetchTally") -> "PrefetchTally":
        """What has come since."""
        return PrefetchTally(*map(sub, astuple(self), astuple(before)))


class PrefetchCounts:
    """What became of prefetches, by cause and of all together."""

    def __init__(self) -> None:
        self._by_cause: dict[PrefetchCause, PrefetchTally] = {}
        self._unclaimed: dict[AdapterKey, PrefetchCause] = {}

    def start(self, key: AdapterKey, num_bytes: int, cause: PrefetchCause) -> None:
        """One more was started."""
        self._unclaimed[key] = cause
        self._add(cause, PrefetchTally(num_started=1, started_bytes=num_bytes))

    def claim(self, key: AdapterKey) -> None:
        """A request needs what was prefetched."""
        self._add(self._unclaimed.pop(key), PrefetchTally(num_claimed=1))

    def waste(self, key: AdapterKey, num_bytes: int) -> None:
        """What was prefetched is gone, and no request has needed it."""
        self._add(self._unclaimed.pop(key), PrefetchTally(num_wasted=1, wasted_bytes=num_bytes))

    def cause(self, key: AdapterKey) -> PrefetchCause | None:
        """Why it was prefetched; None if it was not, or a request has needed it since."""
        return self._unclaimed.get(key)

    def of(self, cause: PrefetchCause) -> PrefetchTally:
        """Of one cause."""
        return self._by_cause.get(cause, PrefetchTally())

    @property
    def total(self) -> PrefetchTally:
        """Of all causes together."""
        return sum(self._by_cause.values(), PrefetchTally())

    @property
    def num_started(self) -> int:
        """Of all causes; so below."""
        return self.total.num_started

    @property
    def num_claimed(self) -> int:
        """By requests that needed them."""
        return self.total.num_claimed

    @property
    def num_wasted(self) -> int:
        """Evicted or failed before."""
        return self.total.num_wasted

    @property
    def started_bytes(self) -> int:
        """Of what was started."""
        return self.total.started_bytes

    @property
    def wasted_bytes(self) -> int:
        """Of what was wasted."""
        return self.total.wasted_bytes

    def check(self, num_unclaimed: int) -> None:
        """Assert the conservation law, where so many are there or on their way, unclaimed."""
        total = self.total
        assert len(self._unclaimed) == num_unclaimed
        assert total.num_started == total.num_claimed + total.num_wasted + num_unclaimed

    def _add(self, cause: PrefetchCause, tally: PrefetchTally) -> None:
        self._by_cause[cause] = self.of(cause) + tally


@dataclass(slots=True)
class ResidencyCounts:
    """Loads, uses and evictions."""

    num_uses: int = 0
    """Leases of requests that began to run."""
    num_loads: int = 0
    """All loads that were started, prefetches too."""
    num_host_loads: int = 0
    """Of those, from the host's memory: the others read the store."""
    num_drops: int = 0
    routes: dict[Route, int] = field(default_factory=dict)
    """Requests that ran on an adapter, each choice by itself and once, however often it lost its
    memory and began again: `num_uses` counts it each time."""
    evictions: dict[tuple[TierName, Cause], int] = field(default_factory=dict)

    def count_load(self, *, is_from_host: bool) -> None:
        """One more has been started."""
        self.num_loads += 1
        self.num_host_loads += is_from_host

    def count_route(self, route: Route) -> None:
        """One more request has come to run on its adapter so."""
        self.routes[route] = self.routes.get(route, 0) + 1

    def count_eviction(self, tier: TierName, cause: Cause) -> None:
        """One more has lost its memory."""
        self.evictions[tier, cause] = self.evictions.get((tier, cause), 0) + 1
