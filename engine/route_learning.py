"""What is learned of how fast cold adapters come and are computed. Pure Python."""

from collections import deque
from math import exp, log, sqrt
from statistics import median
from typing import NamedTuple

_NUM_COPIES = 9
"""Copies whose median is the link's rate: four outliers among them change nothing."""
_FEWEST_BYTES = 1 << 16
"""Of a copy that tells a rate; the time of smaller ones is mostly latency."""
_FORGETTING = 0.9
_PRIOR_WEIGHT = 0.1
_MOST_SURPRISE = 8.0
"""Factor by which a measurement may differ from what was expected; more is taken as that."""
_FADING = 0.98
_MOST_WEIGHT = 12.0
"""Measurements that a correction is a mean of, at most; so it follows what changes."""
_MOST_CORRECTION = log(4.0)
_UNSEEN_DEVIATION = 0.2
"""Of a prediction that nothing was learned of, relative."""
_LEAST_DEVIATION = 0.02


class CopyRate:
    """Bytes a second of the link, of late; one copy that was disturbed changes nothing."""

    def __init__(self, bytes_per_s: float) -> None:
        """`bytes_per_s` holds until the first copy."""
        self.bytes_per_s = bytes_per_s
        self._newest: deque[float] = deque(maxlen=_NUM_COPIES)

    def note(self, num_bytes: int, seconds: float) -> None:
        """Learn from a copy; what is too small or took no time tells nothing."""
        if num_bytes >= _FEWEST_BYTES and seconds > 0:
            self._newest.append(num_bytes / seconds)
            self.bytes_per_s = median(self._newest)


class HostRate:
    """How long the host takes for an adapter's part of one layer: a fixed time, and one in
    proportion to tokens × bytes, divided among its processes. Least squares, old ones fading."""

    _PRIOR_FIXED_MS = 0.2
    _PRIOR_MS_PER_WORK = 5e-8 * 1e6
    """Per million of tokens × bytes of one process: two operations for each parameter of two
    bytes, 20 thousand million a second."""

    def __init__(self, num_processes: int) -> None:
        self.num_processes = max(1, num_processes)
        """Among which it is divided now."""
        self._fixed_ms, self._ms_per_work = self._PRIOR_FIXED_MS, self._PRIOR_MS_PER_WORK
        self._weight = self._work = self._work2 = self._ms = self._work_ms = 0.0

    def layer_ms(self, num_tokens: int, num_bytes: float) -> float:
        """Time of one layer's part, hand-over included."""
        return self._fixed_ms + self._ms_per_work * self._work_of(num_tokens, num_bytes)

    def note(self, num_tokens: int, num_bytes: int, ms: float, num_layers: int) -> None:
        """Learn from so many layers, of so many bytes together."""
        if num_layers < 1 or ms <= 0:
            return
        layer_bytes = num_bytes / num_layers
        expected_ms = self.layer_ms(num_tokens, layer_bytes)
        layer_ms = min(
            max(ms / num_layers, expected_ms / _MOST_SURPRISE), expected_ms * _MOST_SURPRISE
        )
        work = self._work_of(num_tokens, layer_bytes)
        # Relative errors count, else small prompts would say nothing.
        weight = 1.0 / layer_ms**2
        self._weight = _FORGETTING * self._weight + weight
        self._work = _FORGETTING * self._work + weight * work
        self._work2 = _FORGETTING * self._work2 + weight * work * work
        self._ms = _FORGETTING * self._ms + weight * layer_ms
        self._work_ms = _FORGETTING * self._work_ms + weight * work * layer_ms
        self._solve()

    def _work_of(self, num_tokens: int, num_bytes: float) -> float:
        return num_tokens * num_bytes / self.num_processes / 1e6

    def _solve(self) -> None:
        """Of what explains the measurements take what is nearest to what was known before."""
        fixed, slope = self._fixed_ms, self._ms_per_work
        ridge_fixed = _PRIOR_WEIGHT / self._PRIOR_FIXED_MS**2
        ridge_slope = _PRIOR_WEIGHT / self._PRIOR_MS_PER_WORK**2
        a, b, d = self._weight + ridge_fixed, self._work, self._work2 + ridge_slope
        p, q = self._ms + ridge_fixed * fixed, self._work_ms + ridge_slope * slope
        determinant = a * d - b * b
        fixed, slope = (d * p - b * q) / determinant, (a * q - b * p) / determinant
        if fixed < 0:
            fixed, slope = 0.0, q / d
        elif slope < 0:
            fixed, slope = p / a, 0.0
        self._fixed_ms, self._ms_per_work = fixed, slope


class Corrections:
    """Factors by which predictions of several kinds are corrected.

    A kind of which little was learned leans on the others: what slows the machine down slows down
    all, and a kind must not look good because it was never tried. What was learned of a kind fades
    while others are observed, so that bad luck at the beginning does not rule it out for ever.
    """

    def __init__(self) -> None:
        self._learned: dict[str, _Learned] = {}
        self._common = 0.0
        """Mean of what was learned of all kinds."""
        self._factors: dict[str, float] = {}

    def factor(self, kind: str) -> float:
        """By which a prediction of this kind is to be multiplied; within a quarter and four."""
        factor = self._factors.get(kind)
        if factor is None:
            own = self._learned.get(kind, _NOTHING)
            factor = exp((own.weight * own.level + self._common) / (own.weight + 1.0))
            self._factors[kind] = factor
        return factor

    def error(self, kind: str) -> float:
        """Standard error of the factor, relative: of a kind that was seen often it is small,
        however much single measurements differ."""
        own = self._learned.get(kind, _NOTHING)
        return sqrt(own.variance / (own.weight + 1.0))

    def note(self, kind: str, ratio: float) -> None:
        """Something of this kind took `ratio` × what was predicted without corrections."""
        own = self._learned.get(kind, _NOTHING)
        for name, other in self._learned.items():
            self._learned[name] = other._replace(weight=other.weight * _FADING)
        miss = min(max(log(ratio), -_MOST_CORRECTION), _MOST_CORRECTION) - own.level
        rate = 1.0 / (own.weight + 1.0)
        # One that is far off is an outlier first, and believed when others say the same.
        bound = 3.0 * sqrt(own.variance)
        level = own.level + rate * min(max(miss, -bound), bound)
        variance = own.variance + rate * (min(miss * miss, bound * bound) - own.variance)
        weight = min(own.weight * _FADING + 1.0, _MOST_WEIGHT)
        self._learned[kind] = _Learned(level, max(variance, _LEAST_DEVIATION**2), weight)
        all_kinds = self._learned.values()
        self._common = sum(each.weight * each.level for each in all_kinds) / max(
            1.0, sum(each.weight for each in all_kinds)
        )
        self._factors.clear()


class _Learned(NamedTuple):
    """Of one kind, in logarithms of measured ÷ predicted."""

    level: float
    variance: float
    weight: float
    """Measurements that it is worth."""


_NOTHING = _Learned(0.0, _UNSEEN_DEVIATION**2, 0.0)
