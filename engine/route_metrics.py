"""Metrics of how requests came to run on their adapters. No tenant and no adapter is a label."""

from typing import get_args

from prometheus_client import CollectorRegistry, Counter

from loraplex.adapters.residency_counts import ResidencyCounts, Route


class RouteMetrics:
    """One counter, by route."""

    def __init__(self, registry: CollectorRegistry, counts: ResidencyCounts) -> None:
        self._routes = Counter(
            "loraplex_adapter_routes",
            "Requests that began to run on an adapter, by how they came to: it was there, or had "
            "been prefetched; they waited for its load, or joined another's; or they were computed "
            "while it was copied, layer by layer or with the host's assistance.",
            ["route"],
            registry=registry,
        )
        self._counts = counts
        self._seen: dict[Route, int] = {}
        for route in get_args(Route):
            self._routes.labels(route)  # so that all are told from the start

    def observe(self) -> None:
        """Count what has happened since the last call."""
        for route, num in self._counts.routes.items():
            self._routes.labels(route).inc(num - self._seen.get(route, 0))
        self._seen = dict(self._counts.routes)
