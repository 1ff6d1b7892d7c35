"""What the prefix cache does, for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from loraplex.engine.request_blocks import RequestBlocks


class CacheCollector(Collector):
    """Asks for counts when metrics are read; all are 0 without a cache."""

    def __init__(self, blocks: RequestBlocks) -> None:
        self._blocks = blocks

    def collect(self) -> Iterator[CounterMetricFamily]:
        """See Collector."""
        counts = self._blocks.counts
        yield CounterMetricFamily(
            "loraplex_prefix_cache_asked_tokens",
            "Prompt tokens of requests that began.",
            value=counts.asked_tokens,
        )
        yield CounterMetricFamily(
            "loraplex_prefix_cache_found_tokens",
            "Of those, tokens that were in the prefix cache.",
            value=counts.found_tokens,
        )
        yield CounterMetricFamily(
            "loraplex_prefix_cache_evicted_blocks",
            "KV blocks that the prefix cache gave up for others.",
            value=counts.evicted_blocks,
        )
