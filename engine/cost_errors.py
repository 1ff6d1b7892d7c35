"""How far predictions were from what was measured, and when they have begun to drift."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loraplex.engine.cost_features import Floats, StepFeatures

_WINDOW = 512
_SETTLING_STEPS = 50
_JUDGED_AFTER_STEPS = 64
_ONE_CHOICE_IN = 8


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


@dataclass(frozen=True, slots=True)
class Choice:
    """A size that was chosen for the prompts of a step, among others."""

    step: StepFeatures
    """The step without them."""
    sizes: NDArray[np.int64]
    chosen: int
    """Which of the sizes."""
    limit_ms: float
    """How long the step was to take at most; `inf` for any time."""


class Hindsight:
    """What was lost by choices, judged by what is known 64 steps after each: one in eight is kept.

    The sizes that were not chosen never ran, so this is what the model finds wrong about itself,
    which is less than all that was.
    """

    def __init__(
        self, predict_ms: Callable[[StepFeatures, NDArray[np.int64], int, float], Floats]
    ) -> None:
        """`predict_ms` tells times of steps with more of a prompt, as the cost model does."""
        self._predict_ms = predict_ms
        self._count = 0
        self._kept: deque[tuple[int, Choice]] = deque()
        self._regrets = ErrorWindow()

    def note(self, choice: Choice, num_steps: int) -> None:
        """A choice was made after `num_steps` had been learned."""
        if self._count % _ONE_CHOICE_IN == 0:
            self._kept.append((num_steps, choice))
        self._count += 1
        while self._kept and self._kept[0][0] + _JUDGED_AFTER_STEPS <= num_steps:
            judged = self._kept.popleft()[1]
            times = self._predict_ms(judged.step, judged.sizes, 0, 0)
            self._regrets.add(regret_of(judged.chosen, times, judged.sizes, judged.limit_ms))

    def percentiles(self) -> ErrorPercentiles:
        """Of the regrets of the newest choices that were judged."""
        return self._regrets.percentiles()


def decision_regret(
    predicted_ms: ArrayLike,
    measured_ms: ArrayLike,
    tokens: ArrayLike,
    limit_ms: float = inf,
) -> float:
    """What choosing by prediction lost against choosing in hindsight, from 0 (nothing) to 1.

    The choice is the candidate with the most tokens per millisecond by prediction; see `regret_of`.
    """
    chosen = int(_rates(predicted_ms, tokens, limit_ms).argmax())
    return regret_of(chosen, measured_ms, tokens, limit_ms)


def regret_of(
    chosen: int,
    times_ms: ArrayLike,
    tokens: ArrayLike,
    limit_ms: float = inf,
) -> float:
    """The share of the best rate of tokens that the chosen candidate misses, from 0 to 1.

    A candidate's rate counts less by the factor by which it is longer than `limit_ms`, so that
    breaking the limit by a little loses a little.
    """
    rates = _rates(times_ms, tokens, limit_ms)
    best = float(rates.max())
    return 1.0 - float(rates[chosen]) / best if best > 0 else 0.0


def _rates(times_ms: ArrayLike, tokens: ArrayLike, limit_ms: float) -> Floats:
    times = np.maximum(np.asarray(times_ms, float), 1e-9)
    return np.asarray(np.asarray(tokens, float) / times * np.minimum(1.0, limit_ms / times))
