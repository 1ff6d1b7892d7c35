"""How many steps graphs compute, for Prometheus."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector


class GraphCollector(Collector):
    """Asks for counts when metrics are read."""

    def __init__(self, num_steps: Mapping[bool, int]) -> None:
        """``num_steps`` are those computed so far, by whether it was by a graph."""
        self._num_steps = num_steps

    def collect(self) -> Iterator[CounterMetricFamily]:
        """See Collector."""
        family = CounterMetricFamily(
            "loraplex_steps",
            "Forward passes: by a CUDA graph, or launched kernel by kernel, as all are on a CPU.",
            labels=("way",),
        )
        for is_graph, way in ((True, "graph"), (False, "launched")):
            family.add_metric((way,), self._num_steps[is_graph])
        yield family
