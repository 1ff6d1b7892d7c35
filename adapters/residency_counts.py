"""What has happened to adapters in memory since the start."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

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


@dataclass(slots=True)
class PrefetchCounts:
    """What became of prefetches; what is neither claimed nor wasted is still there."""

    num_started: int = 0
    num_claimed: int = 0
    num_wasted: int = 0
    started_bytes: int = 0
    wasted_bytes: int = 0


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
    """Requests that began to run on an adapter, each choice by itself; what `num_uses` counts."""
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
