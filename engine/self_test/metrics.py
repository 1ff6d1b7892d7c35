"""Metrics of self-tests; label sets are closed."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from loraplex.engine.protocol import SelfTest

_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class SelfTestMetrics:
    """How many adapters were tested, and what became of it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._tests = Counter(
            "loraplex_self_tests",
            "Tests of adapters at registration, by reference and result; `failed`: no test could "
            "be made.",
            ["method", "result"],
            registry=registry,
        )
        self._seconds = Histogram(
            "loraplex_self_test_seconds",
            "Time of one test, without those before it.",
            buckets=_SECONDS,
            registry=registry,
        )
        for method in ("peft", "reference"):
            for result in ("passed", "mismatch"):
                self._tests.labels(method, result)  # so that all are told from the start
        self._tests.labels("none", "failed")

    def observe(self, report: SelfTest | None, seconds: float) -> None:
        """Count a test."""
        self._seconds.observe(seconds)
        if report is None:
            self._tests.labels("none", "failed").inc()
        else:
            self._tests.labels(report.method, "passed" if report.passed else "mismatch").inc()
