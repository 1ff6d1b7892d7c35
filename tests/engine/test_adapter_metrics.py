"""Metrics of adapters in memory."""

import pytest
from prometheus_client import CollectorRegistry
from tests.engine.linear_costs import LinearCosts

from loraplex.adapters.errors import AdapterCorrupt
from loraplex.adapters.reservations import Reservations
from loraplex.adapters.residency import HostMemory, Residency
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.adapter_metrics import AdapterMetrics, CopyCollector
from loraplex.engine.copy_link import CopyLink
from loraplex.engine.core import StepReport
from loraplex.engine.events import Events, FirstToken
from loraplex.engine.plan import StepPlan
from loraplex.engine.route_metrics import ChoiceCollector, FirstTokenMetrics
from loraplex.engine.routes import ColdStart, Routes
from loraplex.engine.transfers_port import Arrival

A, B = AdapterKey("t", "a"), AdapterKey("t", "b")


def test_loads_are_told_by_route_failures_and_evictions_by_cause_memory_by_tier() -> None:
    registry = CollectorRegistry()
    residency = Residency(4, host=HostMemory(8, lambda _: 3))
    metrics = AdapterMetrics(registry, residency)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"loraplex_{name}", labels)

    assert value("adapter_evictions_total", tier="host", cause="load") == 0
    for key in (A, B, A):
        residency.start_load(key, 4)
        residency.finish_load(key)
    residency.acquire(A)
    residency.counts.count_route("layer-wise")
    residency.drop(B)
    residency.reserve(Reservations(1, {A: 9}))
    corrupt = AdapterCorrupt("d", "cut short")
    arrivals = (
        Arrival(A, route="host", seconds=0.2),
        Arrival(B, corrupt),
        Arrival(B, OSError("gone")),
    )
    plan = StepPlan(1, loads=(A,))
    for _ in range(2):
        metrics.observe(StepReport(plan, Events(), arrivals=arrivals))
        plan, arrivals = StepPlan(2), ()
    assert value("adapter_loads_total") == 1
    assert value("adapter_load_seconds_sum", route="host") == 0.2
    assert value("adapter_load_seconds_count", route="store") == 0
    assert value("adapter_load_failures_total", cause="corrupt") == 1
    assert value("adapter_load_failures_total", cause="other") == 1
    assert value("adapter_evictions_total", tier="device", cause="load") == 2
    assert value("adapter_evictions_total", tier="host", cause="drop") == 1
    assert value("adapter_uses_total") == 1
    assert value("adapter_routes_total", route="layer-wise") == 1
    assert value("adapter_routes_total", route="assist") == 0
    assert value("adapter_drops_total") == 1
    assert value("adapter_bytes", state="held") == 4
    assert value("host_adapter_bytes", state="held") == 3
    assert value("adapters", tier="device") == value("adapters", tier="host") == 1
    assert value("adapter_promises", state="refused") == 1


def test_what_the_link_copied_is_told_by_cause_and_its_rate_beside_the_throttle() -> None:
    registry = CollectorRegistry()
    seconds = iter((0.0, 0.0, 0.0, 0.5, 0.5))
    link = CopyLink(None, lambda: next(seconds))
    registry.register(CopyCollector(link))

    def rate(kind: str) -> float | None:
        labels = {"kind": kind}
        return registry.get_sample_value("loraplex_adapter_copy_bytes_per_second", labels)

    assert (rate("limit"), rate("measured")) == (float("inf"), 0)
    passage = link.passage(is_prefetch=True)
    link.enter(passage)
    link.take(passage, 100)
    link.leave(passage)
    copied = "loraplex_adapter_copied_bytes_total"
    assert registry.get_sample_value(copied, {"cause": "prefetch"}) == 100
    assert registry.get_sample_value(copied, {"cause": "load"}) == 0
    assert rate("measured") is not None
    link.limit_bytes_per_s = 2e6
    assert rate("limit") == 2e6


def test_first_tokens_are_told_by_route_and_choices_by_what_they_lost() -> None:
    registry = CollectorRegistry()
    routes = Routes(LinearCosts(num_steps=1000), "wait", 0, 1e9)
    registry.register(ChoiceCollector(routes))
    first_tokens = FirstTokenMetrics(registry)
    first_tokens.observe([FirstToken("assist", 0.25), FirstToken("assist", 0.5)])
    decision = routes.choose(ColdStart(256, 0, 16.0, 0, 256_000_000, 0, 32, 0))
    routes.note_first_token(decision, decision.plain_ms)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"loraplex_{name}", labels)

    assert value("adapter_first_token_seconds_sum", route="assist") == 0.75
    assert value("adapter_first_token_seconds_count", route="wait") == 0
    assert value("route_choice_regret_ratio") == routes.regret.ratio > 0.2
    assert value("route_prediction_error_ratio", route="layer-wise") == pytest.approx(0.2)
    assert value("route_prediction_error_ratio", route="wait") == routes.error("wait") < 0.1
