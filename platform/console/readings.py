"""What the metrics of gateway and worker say at one moment, as numbers to compare."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

REFUSED = ("rate_limited", "overloaded")
Buckets = tuple[tuple[float, float], ...]
"""Upper bound (s) and number of observations up to it, ascending; the last bound is infinite."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters and gauges at one time; None where no worker answered."""

    at_s: float
    requests: float
    refused: float
    """By a quota or a full queue."""
    failed: float
    output_tokens: float
    ttft: Buckets
    computed_tokens: float | None
    """Rows of all steps: prompt and output tokens that the worker computed."""
    steps: float | None
    step_adapters: float | None
    """Sum over all steps of the distinct adapters in each."""
    running: float | None
    waiting: float | None
    kv_held: float | None
    kv_free: float | None
    """Cached ones too: nobody holds them."""


def read(gateway: str, worker: str, at_s: float) -> Reading:
    """Read two texts in the Prometheus format; `worker` is empty where none answered."""
    own, other = _Values(gateway), _Values(worker)
    return Reading(
        at_s=at_s,
        requests=own.total("loraplex_requests_total"),
        refused=own.total("loraplex_requests_total", REFUSED),
        failed=own.total("loraplex_requests_total", ("error",)),
        output_tokens=own.total("loraplex_completion_tokens_total"),
        ttft=own.buckets("loraplex_ttft_seconds_bucket"),
        computed_tokens=other.get("loraplex_step_tokens_sum"),
        steps=other.get("loraplex_step_adapters_count"),
        step_adapters=other.get("loraplex_step_adapters_sum"),
        running=other.get("loraplex_worker_requests", "running"),
        waiting=other.get("loraplex_worker_requests", "waiting"),
        kv_held=other.get("loraplex_kv_blocks", "held"),
        kv_free=_sum(
            other.get("loraplex_kv_blocks", "free"), other.get("loraplex_kv_blocks", "cached")
        ),
    )


def _sum(*values: float | None) -> float | None:
    """Of those that there are; None if there is none."""
    there = [value for value in values if value is not None]
    return sum(there) if there else None


def quantile_s(earlier: Buckets, later: Buckets, q: float) -> float | None:
    """The q-quantile of what was observed between two readings of a histogram, as Prometheus
    estimates it: linear within a bucket. None if nothing was observed."""
    before = dict(earlier)
    counts = [(bound, count - before.get(bound, 0.0)) for bound, count in later]
    if not counts or counts[-1][1] <= 0:
        return None
    rank = q * counts[-1][1]
    lower, below = 0.0, 0.0
    for bound, count in counts:
        if count >= rank:
            share = (rank - below) / (count - below) if count > below else 1.0
            return lower if math.isinf(bound) else lower + (bound - lower) * share
        lower, below = bound, count
    return lower


class _Values:
    """The samples of a text by name and value of their label; no family here has two labels."""

    def __init__(self, text: str) -> None:
        self._values: Mapping[tuple[str, str], float] = dict(_samples(text))

    def get(self, name: str, label: str = "") -> float | None:
        return self._values.get((name, label))

    def total(self, name: str, labels: tuple[str, ...] | None = None) -> float:
        return sum(
            value
            for (sample, label), value in self._values.items()
            if sample == name and (labels is None or label in labels)
        )

    def buckets(self, name: str) -> Buckets:
        found = [
            (float(lb), value) for (sample, lb), value in self._values.items() if sample == name
        ]
        return tuple(sorted(found))


def _samples(text: str) -> Iterator[tuple[tuple[str, str], float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield (sample.name, ",".join(sample.labels.values())), float(sample.value)
