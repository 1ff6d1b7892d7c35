"""Metrics of how requests came to run on their adapters. No tenant and no adapter is a label."""

from collections.abc import Iterable, Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from loraplex.adapters.residency_counts import ResidencyCounts, Route
from loraplex.engine.events import FirstToken
from loraplex.engine.routes import ColdRoute, Routes

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


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


class FirstTokenMetrics:
    """How long first tokens took, by route."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "loraplex_adapter_first_token_seconds",
            "From a request's arrival at the worker to its first token, of requests on adapters, "
            "by how they came to run on them.",
            ["route"],
            registry=registry,
            buckets=_SECONDS,
        )
        for route in get_args(Route):
            self._seconds.labels(route)  # so that all are told from the start

    def observe(self, first_tokens: Iterable[FirstToken]) -> None:
        """Count those of a step."""
        for route, seconds in first_tokens:
            self._seconds.labels(route).observe(seconds)


class ChoiceCollector(Collector):
    """How good choices and predictions of routes were, asked when metrics are read."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """See `Collector.collect`."""
        yield GaugeMetricFamily(
            "loraplex_route_choice_regret_ratio",
            "Part of the time of requests on arriving adapters that another route would have "
            "saved. An estimate: the others never ran, they are predicted by what is known later.",
            value=self._routes.regret.ratio,
        )
        errors = GaugeMetricFamily(
            "loraplex_route_prediction_error_ratio",
            "Standard error of a route's predictions, relative; 0.2 until it was taken.",
            labels=("route",),
        )
        for route in get_args(ColdRoute):
            errors.add_metric((route,), self._routes.error(route))
        yield errors
