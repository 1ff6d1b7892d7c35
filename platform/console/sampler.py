"""The last quarter of an hour, sampled from the platform's own metrics for the overview."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol

from loraplex.engine.client import EngineClient
from loraplex.platform.console.readings import Reading, quantile_s, read

_log = logging.getLogger(__name__)

EVERY_S = 2.0
KEPT_S = 900.0
RATE_WINDOW_S = 10.0
"""Rates are means over this time: steps of tokens and requests are too coarse for less."""
QUANTILE_WINDOW_S = 30.0


class MetricsSource(Protocol):
    """Metrics of this process in the Prometheus text format."""

    def text(self) -> bytes:
        """All of them."""
        ...


@dataclass(frozen=True, slots=True)
class Point:
    """One point of every chart; None where there was nothing to measure."""

    at_s: float
    requests_per_s: float | None
    refused_per_s: float | None
    failed_per_s: float | None
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    output_tokens_per_s: float | None
    computed_tokens_per_s: float | None
    adapters_per_step: float | None
    running: float | None
    waiting: float | None
    kv_held: float | None
    kv_total: float | None


class Sampler:
    """Reads the metrics every two seconds and keeps what the charts show."""

    def __init__(
        self, metrics: MetricsSource, engine: EngineClient, clock: Callable[[], float]
    ) -> None:
        """`clock` is in seconds since the epoch."""
        self._metrics = metrics
        self._engine = engine
        self._clock = clock
        self._readings: deque[Reading] = deque(maxlen=round(KEPT_S / EVERY_S))
        self._points: deque[Point] = deque(maxlen=round(KEPT_S / EVERY_S))

    async def run(self) -> NoReturn:
        """Sample until cancelled."""
        while True:
            try:
                await self.sample()
            except Exception:  # noqa: BLE001  a sample that fails must not end the charts
                _log.exception("the console's sample failed")
            await asyncio.sleep(EVERY_S)

    async def sample(self) -> None:
        """Add one point."""
        worker = await self._engine.metrics() if self._engine.connected else ""
        reading = read(self._metrics.text().decode(), worker, self._clock())
        if self._readings and reading.at_s <= self._readings[-1].at_s:
            # The machine's clock was set back: what is kept lies in no past of the new time.
            self._readings.clear()
            self._points.clear()
        self._readings.append(reading)
        self._points.append(
            _point(reading, self._before(RATE_WINDOW_S), self._before(QUANTILE_WINDOW_S))
        )

    def points(self, after_s: float = 0.0) -> list[Point]:
        """The points later than `after_s`, oldest first."""
        return [point for point in self._points if point.at_s > after_s]

    def _before(self, window_s: float) -> Reading:
        """The oldest reading that is at most `window_s` older than the newest, if only itself."""
        start_s = self._readings[-1].at_s - window_s
        return next(reading for reading in self._readings if reading.at_s >= start_s)


def _point(now: Reading, rates: Reading, quantiles: Reading) -> Point:
    def per_s(earlier: float | None, later: float | None) -> float | None:
        grown = _growth(earlier, later)
        return None if grown is None or rates is now else grown / (now.at_s - rates.at_s)

    p50, p95 = (quantile_s(quantiles.ttft, now.ttft, q) for q in (0.5, 0.95))
    steps = _growth(rates.steps, now.steps)
    adapters = _growth(rates.step_adapters, now.step_adapters)
    return Point(
        at_s=now.at_s,
        requests_per_s=per_s(rates.requests, now.requests),
        refused_per_s=per_s(rates.refused, now.refused),
        failed_per_s=per_s(rates.failed, now.failed),
        ttft_p50_ms=_ms(p50),
        ttft_p95_ms=_ms(p95),
        output_tokens_per_s=per_s(rates.output_tokens, now.output_tokens),
        computed_tokens_per_s=per_s(rates.computed_tokens, now.computed_tokens),
        adapters_per_step=adapters / steps if steps and adapters is not None else None,
        running=now.running,
        waiting=now.waiting,
        kv_held=now.kv_held,
        kv_total=None if now.kv_held is None else now.kv_held + (now.kv_free or 0.0),
    )


def _growth(earlier: float | None, later: float | None) -> float | None:
    """How much a counter grew; one that is smaller now was started again from 0."""
    if earlier is None or later is None:
        return None
    return later - earlier if later >= earlier else later


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else value_s * 1000
