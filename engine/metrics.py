"""Metrics of one worker, in a registry given to it. Label sets are closed; no tenant is a label."""

from dataclasses import replace
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from loraplex.adapters.residency import Residency
from loraplex.engine.cache_metrics import CacheCollector
from loraplex.engine.core import StepReport
from loraplex.engine.protocol import RejectionCode
from loraplex.engine.scheduler import Scheduler

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_COUNTS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class WorkerMetrics:
    """What the engine's steps do."""

    def __init__(
        self,
        registry: CollectorRegistry,
        scheduler: Scheduler,
        residency: Residency,
        num_blocks: int,
    ) -> None:
        self._registry = registry
        self._step_seconds = Histogram(
            "loraplex_step_seconds",
            "Time of the phases of a step: plan, build (host to device), run, commit.",
            ["phase"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._step_adapters = Histogram(
            "loraplex_step_adapters",
            "Distinct adapters that shared one forward pass; the base model does not count.",
            registry=registry,
            buckets=_COUNTS,
        )
        self._step_requests = Histogram(
            "loraplex_step_requests",
            "Requests that shared one forward pass.",
            registry=registry,
            buckets=_COUNTS,
        )
        self._step_tokens = Histogram(
            "loraplex_step_tokens",
            "Rows of one forward pass.",
            registry=registry,
            buckets=_TOKENS,
        )
        self._queue_seconds = Histogram(
            "loraplex_queue_seconds",
            "From a request's arrival at the worker to the first step that computed any of it.",
            registry=registry,
            buckets=_SECONDS,
        )
        self._preemptions = Counter(
            "loraplex_preemptions",
            "Requests that lost their KV blocks: to be recomputed, or copied to the host and back.",
            ["way"],
            registry=registry,
        )
        self._adapter_loads = Counter(
            "loraplex_adapter_loads", "Adapter transfers that were started.", registry=registry
        )
        self._prefetches = _PrefetchMetrics(registry, residency)
        self._refusals = _refusal_counter(registry)
        self._request_failures = Counter(
            "loraplex_request_failures",
            "Requests that failed while they ran, by cause.",
            ["code"],
            registry=registry,
        )
        registry.register(CacheCollector(scheduler.blocks))
        for way in ("recompute", "swap"):
            self._preemptions.labels(way)  # so that both are told from the start
        self._watch(scheduler, residency, num_blocks)

    def observe(self, report: StepReport) -> None:
        """Count one step. On the engine's thread."""
        plan, events = report.plan, report.events
        self._adapter_loads.inc(len(plan.loads))
        for preempted in plan.preempted:
            self._preemptions.labels("swap" if preempted.is_swapped else "recompute").inc()
        self._prefetches.observe()
        for finished in events.finished:
            self._queue_seconds.observe(finished.queue_ms / 1e3)
        for rejected in events.rejected:
            self._refusals.labels(rejected.code).inc()
        for failed in events.failed:
            self._request_failures.labels(failed.code).inc()
        if plan.num_requests:
            self._step_adapters.observe(plan.num_adapters)
            self._step_requests.observe(plan.num_requests)
            self._step_tokens.observe(plan.num_tokens)
            self._step_seconds.labels("plan").observe(report.plan_s)
            self._step_seconds.labels("build").observe(report.build_s)
            self._step_seconds.labels("run").observe(report.run_s)
            self._step_seconds.labels("commit").observe(report.commit_s)

    def render(self) -> str:
        """All metrics in the Prometheus text format."""
        return generate_latest(self._registry).decode()

    def _watch(self, scheduler: Scheduler, residency: Residency, num_blocks: int) -> None:
        requests = self._by_state("loraplex_worker_requests", "Requests in the worker")
        requests.labels("running").set_function(lambda: scheduler.num_running)
        requests.labels("waiting").set_function(lambda: scheduler.num_waiting)
        blocks = self._by_state("loraplex_kv_blocks", "KV blocks")
        pool = scheduler.blocks.pool
        blocks.labels("free").set_function(lambda: pool.num_free - pool.num_cached)
        blocks.labels("cached").set_function(lambda: pool.num_cached)
        blocks.labels("held").set_function(lambda: num_blocks - scheduler.num_free_blocks)
        on_host = self._by_state("loraplex_host_kv_blocks", "KV blocks of the host's memory")
        swapping = scheduler.blocks.swapping
        on_host.labels("free").set_function(lambda: swapping.num_free_blocks)
        on_host.labels("held").set_function(lambda: swapping.num_blocks - swapping.num_free_blocks)
        held = self._by_state("loraplex_adapter_bytes", "Memory of adapters")
        held.labels("held").set_function(lambda: residency.held_bytes)
        held.labels("free").set_function(lambda: residency.capacity_bytes - residency.held_bytes)

    def _by_state(self, name: str, what: str) -> Gauge:
        return Gauge(name, f"{what}, by state.", ["state"], registry=self._registry)


class _PrefetchMetrics:
    """What becomes of prefetches: precision is claimed ÷ started, recall claimed ÷ (claimed +
    loads)."""

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
        self._counts = residency.prefetched
        self._seen = replace(self._counts)

    def observe(self) -> None:
        """Count what has happened since the last call."""
        now, seen = self._counts, self._seen
        if now == seen:
            return
        self._prefetches.labels("started").inc(now.num_started - seen.num_started)
        self._prefetches.labels("claimed").inc(now.num_claimed - seen.num_claimed)
        self._prefetches.labels("wasted").inc(now.num_wasted - seen.num_wasted)
        self._wasted_bytes.inc(now.wasted_bytes - seen.wasted_bytes)
        self._seen = replace(now)


def _refusal_counter(registry: CollectorRegistry) -> Counter:
    counter = Counter(
        "loraplex_worker_refusals",
        "Requests that the worker refused before anything of them ran; `late`: for their deadline.",
        ["code"],
        registry=registry,
    )
    for code in get_args(RejectionCode):
        counter.labels(code)
    return counter
