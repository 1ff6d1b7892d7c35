"""Metrics of one worker, in a registry given to it. Label sets are closed; no tenant is a label."""

from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from loraplex.adapters.residency import Residency
from loraplex.engine.adapter_metrics import AdapterMetrics
from loraplex.engine.cache_metrics import CacheCollector
from loraplex.engine.core import StepReport
from loraplex.engine.protocol import RejectionCode
from loraplex.engine.route_metrics import ChoiceCollector, FirstTokenMetrics
from loraplex.engine.scheduler import Scheduler
from loraplex.engine.waits import Reason

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
        self._wait_seconds = _wait_counter(registry)
        self._preemptions = Counter(
            "loraplex_preemptions",
            "Requests that lost their KV blocks: to be recomputed, or copied to the host and back.",
            ["way"],
            registry=registry,
        )
        self._adapters = AdapterMetrics(registry, residency)
        self._refusals = _refusal_counter(registry)
        self._request_failures = Counter(
            "loraplex_request_failures",
            "Requests that failed while they ran, by cause.",
            ["code"],
            registry=registry,
        )
        registry.register(CacheCollector(scheduler.blocks))
        registry.register(ChoiceCollector(scheduler.routes))
        self._first_tokens = FirstTokenMetrics(registry)
        for way in ("recompute", "swap"):
            self._preemptions.labels(way)  # so that both are told from the start
        self._watch(scheduler)

    def observe(self, report: StepReport) -> None:
        """Count one step. On the engine's thread."""
        plan, events = report.plan, report.events
        for preempted in plan.preempted:
            self._preemptions.labels("swap" if preempted.is_swapped else "recompute").inc()
        self._adapters.observe(report)
        self._first_tokens.observe(events.first_tokens)
        for finished in events.finished:
            self._queue_seconds.observe(finished.queue_ms / 1e3)
            for reason, waited_ms in finished.waited_ms.items():
                self._wait_seconds.labels(reason).inc(waited_ms / 1e3)
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

    def _watch(self, scheduler: Scheduler) -> None:
        requests = self._by_state("loraplex_worker_requests", "Requests in the worker")
        requests.labels("running").set_function(lambda: scheduler.num_running)
        requests.labels("waiting").set_function(lambda: scheduler.num_waiting)
        blocks = self._by_state("loraplex_kv_blocks", "KV blocks")
        pool = scheduler.blocks.pool
        blocks.labels("free").set_function(lambda: pool.num_free - pool.num_cached)
        blocks.labels("cached").set_function(lambda: pool.num_cached)
        blocks.labels("held").set_function(lambda: pool.num_blocks - pool.num_free)
        blocks.labels("lent").set_function(lambda: pool.num_lent)
        on_host = self._by_state("loraplex_host_kv_blocks", "KV blocks of the host's memory")
        swapping = scheduler.blocks.swapping
        on_host.labels("free").set_function(lambda: swapping.num_free_blocks)
        on_host.labels("held").set_function(lambda: swapping.num_blocks - swapping.num_free_blocks)

    def _by_state(self, name: str, what: str) -> Gauge:
        return Gauge(name, f"{what}, by state.", ["state"], registry=self._registry)


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


def _wait_counter(registry: CollectorRegistry) -> Counter:
    counter = Counter(
        "loraplex_wait_seconds",
        "Time that requests which ended had waited in the worker, by what for.",
        ["reason"],
        registry=registry,
    )
    for reason in get_args(Reason):
        counter.labels(reason)
    return counter
