"""How long the output of a request will be, learned per adapter. Pure Python; no clock.

An adapter is usually trained for one task, so its own lengths tell more than the prompt does. For
each adapter a histogram of lengths is kept, on a geometric scale and discounted with each new
length; an adapter that is little known borrows from all adapters, and all of them together from a
prior.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, log

from loraplex.adapters.spec import AdapterKey

_RATIO = 1.25
_NUM_BUCKETS = 64
"""Up to 1.25⁶⁴ ≈ 1.6 million tokens; longer ones count as that."""
_KEPT = 0.98
_PRIOR_LENGTHS = 4.0
_MAX_ADAPTERS = 4096
_CENTRES = tuple(_RATIO ** (i - 0.5) for i in range(_NUM_BUCKETS + 1))
_UPPER = tuple(_RATIO**i for i in range(_NUM_BUCKETS + 1))


@dataclass(slots=True)
class _Histogram:
    counts: list[float] = field(default_factory=lambda: [0.0] * (_NUM_BUCKETS + 1))
    total: float = 0.0

    def add(self, bucket: int) -> None:
        self.counts = [count * _KEPT for count in self.counts]
        self.counts[bucket] += 1.0
        self.total = self.total * _KEPT + 1.0


class OutputLengths:
    """Predicts output lengths in tokens. Belongs to one thread; knows the 4,096 newest adapters."""

    def __init__(self, prior_tokens: int = 128) -> None:
        """`prior_tokens` is taken for the usual length before anything has ended."""
        self._all = _Histogram()
        self._all.add(_bucket(prior_tokens))
        self._of: OrderedDict[AdapterKey | None, _Histogram] = OrderedDict()

    def observe(self, adapter: AdapterKey | None, output_tokens: int) -> None:
        """Learn from an output that ended, by itself or at its cap; not from an aborted one.

        None is the base model. One that was cut counts as if it had ended there.
        """
        if output_tokens < 1:
            return
        histogram = self._of.pop(adapter, None) or _Histogram()
        self._of[adapter] = histogram
        if len(self._of) > _MAX_ADAPTERS:
            self._of.popitem(last=False)
        bucket = _bucket(output_tokens)
        histogram.add(bucket)
        self._all.add(bucket)

    def predict(self, adapter: AdapterKey | None, max_tokens: int, generated: int = 0) -> float:
        """Expected length of the whole output, given that `generated` tokens have not ended it.

        Always in [min(generated + 1, max_tokens), max_tokens].
        """
        weight = mean = 0.0
        for bucket, count in enumerate(self._weights(adapter)):
            if count and _UPPER[bucket] > generated:
                weight += count
                mean += count * min(max(_CENTRES[bucket], generated + 1), max_tokens)
        # Longer than anything seen: about as much again, as for a power law.
        expected = mean / weight if weight else 2.0 * generated
        return min(max(expected, generated + 1.0), float(max_tokens))

    def quantile(self, adapter: AdapterKey | None, max_tokens: int, share: float) -> int:
        """A length that a `share` of outputs, in (0, 1], does not exceed; at most `max_tokens`."""
        weights = self._weights(adapter)
        left = share * sum(weights) - 1e-9
        for bucket, count in enumerate(weights):
            left -= count
            if left <= 0:
                return min(ceil(_UPPER[bucket]), max_tokens)
        return max_tokens

    def _weights(self, adapter: AdapterKey | None) -> Sequence[float]:
        """The adapter's histogram, and that of all as if it were a few of its lengths."""
        borrowed = _PRIOR_LENGTHS / self._all.total
        own = self._of.get(adapter)
        if own is None:
            return self._all.counts
        return [a + borrowed * b for a, b in zip(own.counts, self._all.counts, strict=True)]


def _bucket(tokens: int) -> int:
    """Bucket i holds (1.25^(i-1), 1.25^i]."""
    return min(max(0, ceil(log(tokens, _RATIO) - 1e-9)), _NUM_BUCKETS) if tokens > 0 else 0
