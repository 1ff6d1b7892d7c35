"""The gateway's metrics. Labels have closed sets of values: never a tenant, model or path."""

from collections.abc import Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

Outcome = Literal[
    "ok", "client_error", "unauthorized", "rate_limited", "overloaded", "aborted", "error"
]

_TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TPOT_BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)
_OUTCOME_OF_STATUS: Mapping[int, Outcome] = {
    200: "ok",
    401: "unauthorized",
    403: "unauthorized",
    429: "rate_limited",
    499: "aborted",
    503: "overloaded",
}


class LedgerMetrics:
    """Whether what was used is charged once, and what is not yet."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.usage_conflicts = Counter(
            "loraplex_usage_conflicts",
            "Requests whose usage was in the ledger already with other figures; the first stay.",
            registry=registry,
        )
        self.reaped_intents = Counter(
            "loraplex_reaped_intents",
            "Intents of gateways that died, settled or removed by this one.",
            registry=registry,
        )
        self.open_intents = Gauge(
            "loraplex_open_intents", "Intents of all gateways that are open.", registry=registry
        )
        self.overdue_intents = Gauge(
            "loraplex_overdue_intents",
            "Open intents whose leases are over: nobody has settled them yet.",
            registry=registry,
        )
        self.drift_budgets = Gauge(
            "loraplex_ledger_drift_budgets",
            "Budgets of which the quota store knew another use than the database.",
            registry=registry,
        )
        self.drift_requests = Gauge(
            "loraplex_ledger_drift_requests",
            "Requests in the worker's journal less those of them that are in the ledger.",
            registry=registry,
        )
        self.drift_tokens = Gauge(
            "loraplex_ledger_drift_tokens",
            "Tokens in the worker's journal less those that the ledger has of its requests.",
            registry=registry,
        )


class GatewayMetrics:
    """Counters and histograms of completions, in a registry that is given in."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.requests = Counter(
            "loraplex_requests", "Completion requests by outcome.", ["outcome"], registry=registry
        )
        self.open_requests = Gauge(
            "loraplex_open_requests", "Requests admitted and not settled yet.", registry=registry
        )
        self.ttft_s = Histogram(
            "loraplex_ttft_seconds",
            "From the arrival of a request to its first token.",
            buckets=_TTFT_BUCKETS_S,
            registry=registry,
        )
        self.tpot_s = Histogram(
            "loraplex_tpot_seconds",
            "Mean time per output token after the first, one sample per request.",
            buckets=_TPOT_BUCKETS_S,
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "loraplex_prompt_tokens", "Prompt tokens in the ledger.", registry=registry
        )
        self.completion_tokens = Counter(
            "loraplex_completion_tokens", "Output tokens in the ledger.", registry=registry
        )
        self.settlement_failures = Counter(
            "loraplex_settlement_failures",
            "Requests whose usage could not be written to the ledger; see the log.",
            registry=registry,
        )

        self.ledger = LedgerMetrics(registry)

        self.quota_store_away = Gauge(
            "loraplex_quota_store_away",
            "1 while the quota store is away and this gateway counts limits by itself, else 0.",
            registry=registry,
        )

    def text(self) -> bytes:
        """All metrics of the registry in the Prometheus text format."""
        return generate_latest(self._registry)


def outcome_of(status: int) -> Outcome:
    """The outcome that a status of the gateway stands for."""
    if status in _OUTCOME_OF_STATUS:
        return _OUTCOME_OF_STATUS[status]
    return "client_error" if 400 <= status < 500 else "error"
