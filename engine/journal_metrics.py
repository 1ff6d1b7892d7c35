"""How the usage journal is, for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from loraplex.engine.journal import Journal


class JournalCollector(Collector):
    """Asks the journal when metrics are read."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """See Collector."""
        yield GaugeMetricFamily(
            "loraplex_journal_failing",
            "1 while the usage journal cannot be written, so that no request is taken.",
            value=bool(self._journal.failure),
        )
        yield GaugeMetricFamily(
            "loraplex_journal_open_requests",
            "Requests in the usage journal that have not ended.",
            value=self._journal.num_open,
        )
