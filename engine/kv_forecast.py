"""How many tokens the KV pool will hold at most, if outputs are as long as is expected.

Decodes grow by a token a step, all together. So the pool is fullest just before one of them ends,
and it suffices to look at those moments (as "past-future" scheduling does,
https://arxiv.org/abs/2507.10150).
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from loraplex.engine.cost_features import Floats
from loraplex.engine.request import Request


@dataclass(frozen=True, slots=True)
class _Profile:
    """The pool just before each of those ends that run; arrays are of these moments, the last
    first."""

    left: Floats
    """Steps until then."""
    held: Floats
    """Tokens that those hold now who still run then."""
    most_later: Floats
    """The most that is held then or at a later moment."""
    most_sooner: Floats
    """The most that is held then or sooner, and by one more that has as many tokens as steps have
    passed."""

    @classmethod
    def of(cls, left: Floats, tokens: Floats) -> "_Profile":
        """From steps until each ends, the last first, and the tokens that each holds now."""
        held = tokens.cumsum()
        total = held + np.arange(1, len(left) + 1) * left
        return cls(
            left,
            held,
            np.maximum.accumulate(total),
            np.maximum.accumulate((total + left)[::-1])[::-1],
        )

    def peak_with(self, num_tokens: float, output_left: float) -> float:
        """The most that will be held if one more starts now."""
        place = int(np.searchsorted(-self.left, -output_left))
        others = self.held[place - 1] if place else 0.0
        peak = others + num_tokens + (place + 1) * output_left
        if place:
            peak = max(peak, self.most_later[place - 1])
        if place < len(self.left):
            peak = max(peak, self.most_sooner[place] + num_tokens)
        return float(peak)


class KvForecast:
    """What those that run hold and will hold, in tokens. Belongs to one thread; time is in steps,
    and each of them is taken to get a token in each."""

    def __init__(self, output_left: Callable[[Request], float]) -> None:
        """`output_left` predicts anew, for one that has generated more than was expected."""
        self._output_left = output_left
        # Sorted by end, the first first; bases are tokens held less the step, so that they stay.
        self._requests: list[Request] = []
        self._ends: list[float] = []
        self._bases: list[float] = []
        self._sum_of_bases = 0.0
        self._step = 0
        self._profile: _Profile | None = None

    def __len__(self) -> int:
        return len(self._requests)

    def next_step(self) -> None:
        """A step is planned."""
        self._step += 1
        self._profile = None

    def start(self, request: Request, num_tokens: float, output_left: float) -> None:
        """One runs from now on, holds so many tokens, and is expected to generate so many more."""
        end, base = self._step + output_left, num_tokens - self._step
        place = bisect_left(self._ends, end)
        self._requests.insert(place, request)
        self._ends.insert(place, end)
        self._bases.insert(place, base)
        self._sum_of_bases += base
        self._profile = None

    def stop(self, request: Request) -> None:
        """It holds nothing any more."""
        self._remove(self._requests.index(request))

    def exceeds(self, capacity: int, num_tokens: float, output_left: float) -> bool:
        """True if more tokens than `capacity` will be held at some time, if one more starts now."""
        count = len(self._requests) + 1
        longest = max(output_left, self._ends[-1] - self._step) if self._ends else output_left
        held_now = self._sum_of_bases + (count - 1) * self._step + num_tokens
        # Most often there is room even if all live as long as the longest.
        if held_now + count * longest <= capacity:
            return False
        return self.peak(num_tokens, output_left) > capacity

    def peak(self, num_tokens: float, output_left: float) -> float:
        """The most tokens that will be held at a time if one more starts now."""
        if self._profile is None:
            self._expect_overdue()
            self._profile = _Profile.of(
                np.array(self._ends[::-1]) - self._step, np.array(self._bases[::-1]) + self._step
            )
        return self._profile.peak_with(num_tokens, output_left)

    def _expect_overdue(self) -> None:
        while self._requests and self._ends[0] <= self._step:
            request, held = self._requests[0], self._bases[0] + self._step
            self._remove(0)
            self.start(request, held, max(1.0, self._output_left(request)))

    def _remove(self, place: int) -> None:
        del self._requests[place], self._ends[place]
        self._sum_of_bases -= self._bases.pop(place)
        self._profile = None
