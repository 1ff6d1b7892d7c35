"""How well step times are predicted, for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from loraplex.engine.cost import CostModel
from loraplex.engine.cost_errors import ErrorPercentiles


class CostCollector(Collector):
    """Asks the cost model when metrics are read; label sets are closed."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """See Collector."""
        yield _percentiles(
            "loraplex_cost_error_ratio",
            "Relative error of a step's predicted time, over the newest 512 steps; each was "
            "predicted before it was learned from.",
            self._costs.errors(),
        )
        yield _percentiles(
            "loraplex_cost_regret_ratio",
            "Share of the best rate of prompt tokens that the chosen size of a step's prompts "
            "missed, over the newest 512 choices that were judged. An estimate: the other sizes "
            "never ran, the cost model judges them by what it knows 64 steps later.",
            self._costs.regrets(),
        )
        yield CounterMetricFamily(
            "loraplex_cost_drift_alarms",
            "Times that steps were found to take longer or shorter than they used to, so that most "
            "of what was learned was forgotten.",
            value=self._costs.num_alarms,
        )
        yield GaugeMetricFamily(
            "loraplex_cost_steps",
            "Steps that the cost model has learned from, those before this start included.",
            value=self._costs.num_steps,
        )


def _percentiles(name: str, told: str, values: ErrorPercentiles) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, told, labels=("quantile",))
    for quantile, value in (("0.5", values.p50), ("0.95", values.p95), ("0.99", values.p99)):
        family.add_metric((quantile,), value)
    return family
