"""What processes that assist do, for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from loraplex.engine.assist.watch import Watch


class AssistCollector(Collector):
    """Asks the watch when metrics are read; without one all are zero."""

    def __init__(self, watch: Watch | None) -> None:
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        watch = self._watch
        processes = GaugeMetricFamily(
            "loraplex_assist_processes",
            "Processes that compute adapters' parts of prompts on the host: those that can be "
            "asked, and those that are being started or will be.",
            labels=("state",),
        )
        num_starting = watch.num_starting if watch else 0
        processes.add_metric(("ready",), watch.num_processes - num_starting if watch else 0)
        processes.add_metric(("starting",), num_starting)
        yield processes
        yield CounterMetricFamily(
            "loraplex_assist_seconds",
            "Time that they have computed, all together.",
            watch.busy_s if watch else 0.0,
        )
        lost = CounterMetricFamily(
            "loraplex_assist_lost",
            "Processes that were lost: they died, or were late and were killed.",
            labels=("cause",),
        )
        for cause in ("died", "late"):
            lost.add_metric((cause,), watch.num_lost[cause] if watch else 0)
        yield lost
