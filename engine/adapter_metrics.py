"""Metrics of adapters in memory. Label sets are closed; no tenant and no adapter is a label."""

from collections.abc import Callable, Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from loraplex.adapters.errors import AdapterCorrupt, AdapterMismatch, AdapterMissing
from loraplex.adapters.residency import Residency
from loraplex.adapters.residency_counts import (
    CAUSES,
    Cause,
    PrefetchCause,
    PrefetchTally,
    TierName,
)
from loraplex.engine.copy_link import CopyCause, CopyLink
from loraplex.engine.core import StepReport
from loraplex.engine.route_metrics import RouteMetrics
from loraplex.engine.transfers_port import LoadRoute

_LOAD_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_FAILURES = ("corrupt", "missing", "mismatch", "other")


class AdapterMetrics:
    """What the tiers hold, and what comes and goes."""

    def __init__(self, registry: CollectorRegistry, residency: Residency) -> None:
        self._residency = residency
        self._loads = Counter(
            "loraplex_adapter_loads",
            "Loads that requests needed and that were started.",
            registry=registry,
        )
        self._load_seconds = Histogram(
            "loraplex_adapter_load_seconds",
            "From the start of a load or prefetch to its end, by where the adapter came from.",
            ["route"],
            registry=registry,
            buckets=_LOAD_SECONDS,
        )
        self._failures = Counter(
            "loraplex_adapter_load_failures",
            "Loads that failed: the stored bytes are not what was stored, or gone, or made for "
            "another base model, or something else.",
            ["cause"],
            registry=registry,
        )
        self._evictions = Counter(
            "loraplex_adapter_evictions",
            "Adapters that lost their memory, by what for: a load, a prefetch, or since their "
            "version was deleted.",
            ["tier", "cause"],
            registry=registry,
        )
        self._uses = Counter(
            "loraplex_adapter_uses",
            "Requests that began to run on an adapter; those beyond the loads found it there.",
            registry=registry,
        )
        self._drops = Counter(
            "loraplex_adapter_drops", "Deleted versions that were to be freed.", registry=registry
        )
        self._prefetches = PrefetchMetrics(registry, residency)
        self._routes = RouteMetrics(registry, residency.counts)
        self._seen_uses = self._seen_drops = 0
        self._seen_evictions: dict[tuple[TierName, Cause], int] = {}
        self._label_all()
        _watch(registry, residency)

    def observe(self, report: StepReport) -> None:
        """Count what a step has done. On the engine's thread."""
        self._loads.inc(len(report.plan.loads))
        self._prefetches.observe()
        self._routes.observe()
        for arrival in report.arrivals:
            if arrival.error is None:
                self._load_seconds.labels(arrival.route).observe(arrival.seconds)
            else:
                self._failures.labels(_cause(arrival.error)).inc()
        counts = self._residency.counts
        self._uses.inc(counts.num_uses - self._seen_uses)
        self._drops.inc(counts.num_drops - self._seen_drops)
        self._seen_uses, self._seen_drops = counts.num_uses, counts.num_drops
        on_host = self._residency.host.evictions.items()
        evictions = counts.evictions | {("host", cause): num for cause, num in on_host}
        for (tier, cause), num in evictions.items():
            seen = self._seen_evictions.get((tier, cause), 0)
            self._evictions.labels(tier, cause).inc(num - seen)
        self._seen_evictions = evictions

    def _label_all(self) -> None:
        """So that all are told from the start."""
        for route in get_args(LoadRoute):
            self._load_seconds.labels(route)
        for failure in _FAILURES:
            self._failures.labels(failure)
        for tier, causes in CAUSES.items():
            for cause in causes:
                self._evictions.labels(tier, cause)


class PrefetchMetrics:
    """What becomes of prefetches: precision is claimed ÷ started, recall claimed ÷ (claimed +
    loads), of one cause or of all."""

    def __init__(self, registry: CollectorRegistry, residency: Residency) -> None:
        self._prefetches = Counter(
            "loraplex_adapter_prefetches",
            "Loads that were started before any request needed them, by what became of them: "
            "claimed by a request, or wasted, since they were evicted before or failed.",
            ["state"],
            registry=registry,
        )
        self._wasted_bytes = Counter(
            "loraplex_adapter_prefetch_wasted_bytes",
            "Bytes of prefetches that were wasted.",
            registry=registry,
        )
        self._by_cause = Counter(
            "loraplex_adapter_prefetches_by_cause",
            "The same, by why they were started: a request waits that will need it, it was pushed "
            "out and may be asked for again, its tenant said that it would be, or it is pinned.",
            ["cause", "state"],
            registry=registry,
        )
        self._wasted_bytes_by_cause = Counter(
            "loraplex_adapter_prefetch_wasted_bytes_by_cause",
            "Bytes of prefetches that were wasted, by why they were started.",
            ["cause"],
            registry=registry,
        )
        self._counts = residency.prefetched
        self._seen: dict[PrefetchCause, PrefetchTally] = {}
        for cause in get_args(PrefetchCause):
            self._seen[cause] = PrefetchTally()
            self._count(cause, PrefetchTally())

    def observe(self) -> None:
        """Count what has happened since the last call."""
        for cause, seen in self._seen.items():
            now = self._counts.of(cause)
            if now != seen:
                self._count(cause, now - seen)
                self._seen[cause] = now

    def _count(self, cause: PrefetchCause, more: PrefetchTally) -> None:
        states = {
            "started": more.num_started,
            "claimed": more.num_claimed,
            "wasted": more.num_wasted,
        }
        for state, num in states.items():
            self._prefetches.labels(state).inc(num)
            self._by_cause.labels(cause, state).inc(num)
        self._wasted_bytes.inc(more.wasted_bytes)
        self._wasted_bytes_by_cause.labels(cause).inc(more.wasted_bytes)


class CopyCollector(Collector):
    """What the link to the device has copied, and how fast it is."""

    def __init__(self, link: CopyLink) -> None:
        self._link = link

    def collect(self) -> Iterator[Metric]:
        """See `Collector.collect`."""
        rates = GaugeMetricFamily(
            "loraplex_adapter_copy_bytes_per_second",
            "Of adapters to the device: `measured` of late, with the throttle but without waiting "
            "for steps; `limit`: the throttle, infinite if there is none.",
            labels=("kind",),
        )
        limit = self._link.limit_bytes_per_s
        rates.add_metric(("limit",), float("inf") if limit is None else limit)
        rates.add_metric(("measured",), self._link.bytes_per_s or 0.0)
        yield rates
        copied = CounterMetricFamily(
            "loraplex_adapter_copied_bytes",
            "Of adapters that went to the device, for requests or before any needed them.",
            labels=("cause",),
        )
        for cause in get_args(CopyCause):
            copied.add_metric((cause,), self._link.copied_bytes(cause))
        yield copied


def _watch(registry: CollectorRegistry, residency: Residency) -> None:
    host = residency.host

    def gauge(name: str, what: str, **read: Callable[[], int]) -> None:
        made = Gauge(name, f"{what}, by state.", ["state"], registry=registry)
        for state, value in read.items():
            made.labels(state).set_function(value)

    gauge(
        "loraplex_adapter_bytes",
        "The device's memory of adapters",
        held=lambda: residency.held_bytes,
        free=lambda: residency.free_bytes,
    )
    gauge(
        "loraplex_host_adapter_bytes",
        "The host's memory of adapters",
        held=lambda: host.held_bytes,
        free=lambda: host.capacity_bytes - host.held_bytes,
    )
    gauge(
        "loraplex_adapter_promises",
        "Pins and floors, by whether they hold",
        held=lambda: residency.granted.num_held + host.granted.num_held,
        refused=lambda: residency.granted.num_refused + host.granted.num_refused,
    )
    in_tier = Gauge(
        "loraplex_adapters",
        "Adapters that are there or on their way, by tier.",
        ["tier"],
        registry=registry,
    )
    in_tier.labels("device").set_function(lambda: residency.num_adapters)
    in_tier.labels("host").set_function(lambda: len(host.keys))


def _cause(error: Exception) -> str:
    if isinstance(error, AdapterCorrupt):
        return "corrupt"
    if isinstance(error, AdapterMissing):
        return "missing"
    return "mismatch" if isinstance(error, AdapterMismatch) else "other"
