"""How far predictions were from what was measured, and when they have begun to drift."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from loraplex.engine.cost_features import Floats

_WINDOW = 512
_SETTLING_STEPS = 50


@dataclass(frozen=True, slots=True)
class ErrorPercentiles:
    """Of |predicted - measured| ÷ measured, over the newest steps."""

    p50: float
    p95: float
    p99: float
    num_steps: int


class ErrorWindow:
    """The relative errors of the newest 512 predictions, each made before its step was learned."""

    def __init__(self) -> None:
        self._errors: Floats = np.zeros(_WINDOW)
        self._count = 0

    def add(self, relative_error: float) -> None:
        """Take the error of one step; its sign does not matter."""
        self._errors[self._count % _WINDOW] = abs(relative_error)
        self._count += 1

    def percentiles(self, newest: int = _WINDOW) -> ErrorPercentiles:
        """Percentiles over at most the `newest` steps; all 0 before the first."""
        count = min(self._count, _WINDOW, newest)
        if count == 0:
            return ErrorPercentiles(0.0, 0.0, 0.0, 0)
        positions = (self._count - 1 - np.arange(count)) % _WINDOW
        p50, p95, p99 = np.percentile(self._errors[positions], (50, 95, 99))
        return ErrorPercentiles(float(p50), float(p95), float(p99), count)


class DriftAlarm:
    """Page-Hinkley's test (https://doi.org/10.1093/biomet/41.1-2.100) on signed relative errors.

    Errors are measured in their own standard deviation, so that it fits quiet and noisy machines:
    it alarms when they have been on one side by more than half a deviation for long, or by much.
    """

    def __init__(self, tolerance: float = 0.5, threshold: float = 12.0) -> None:
        """Both in standard deviations of an error."""
        self._tolerance = tolerance
        self._threshold = threshold
        self._variance = 0.0
        self._num_steps = 0
        self._above = 0.0
        self._below = 0.0

    def observe(self, relative_error: float) -> bool:
        """Take the signed error of one step; True if the machine has changed."""
        self._num_steps += 1
        error = max(-1.0, min(1.0, relative_error))
        rate = max(1.0 / self._num_steps, 0.01)
        deviation = max(self._variance**0.5, 0.01)
        self._variance += rate * (min(error * error, 9 * deviation**2) - self._variance)
        if self._num_steps <= _SETTLING_STEPS:
            return False
        scaled = error / deviation
        self._above = max(0.0, self._above + scaled - self._tolerance)
        self._below = max(0.0, self._below - scaled - self._tolerance)
        if max(self._above, self._below) <= self._threshold:
            return False
        self._above = self._below = 0.0
        self._num_steps = 0
        return True


def decision_regret(
    predicted_ms: Sequence[float] | Floats,
    measured_ms: Sequence[float] | Floats,
    tokens: Sequence[float] | Floats,
    limit_ms: float = inf,
) -> float:
    """What choosing by prediction lost against choosing in hindsight, from 0 (nothing) to 1.

    The choice is the candidate with the most tokens per millisecond by prediction. A candidate's
    rate counts less by the factor by which it is longer than `limit_ms`, so that breaking the limit
    by a little loses a little. Regret is the share of the best measured rate that it missed.
    """
    work = np.asarray(tokens, float)
    expected, rates = (
        work / np.maximum(times, 1e-9) * np.minimum(1.0, limit_ms / np.maximum(times, 1e-9))
        for times in (np.asarray(predicted_ms, float), np.asarray(measured_ms, float))
    )
    best = rates.max()
    return float(1.0 - rates[expected.argmax()] / best) if best > 0 else 0.0
