"""How many tokens the KV pool will hold at most, if outputs are as long as is expected.

Decodes grow by a token a step, all together. So the pool is fullest just before one of them ends,
and it suffices to look at those moments (as "past-future" scheduling does,
https://arxiv.org/abs/2507.10150).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from loraplex.engine.request import Request


class KvForecast:
    """What those that run hold and will hold, in tokens. Belongs to one thread; time is in steps,
    and each of them is taken to get a token in each."""

    def __init__(self, output_left: Callable[[Request], float]) -> None:
        """`output_left` predicts anew, for one that has generated more than was expected."""
        self._output_left = output_left
        self._requests: list[Request] = []
        # Sorted by end, the last first.
        self._ends: NDArray[np.float64] = np.zeros(0)
        self._bases: NDArray[np.float64] = np.zeros(0)
        self._step = 0

    def __len__(self) -> int:
        return len(self._requests)

    def next_step(self) -> None:
        """A step is planned."""
        self._step += 1

    def start(self, request: Request, num_tokens: float, output_left: float) -> None:
        """One runs from now on, holds so many tokens, and is expected to generate so many more."""
        end = self._step + output_left
        place = int(np.searchsorted(-self._ends, -end))
        self._requests.insert(place, request)
        self._ends = np.insert(self._ends, place, end)
        self._bases = np.insert(self._bases, place, num_tokens - self._step)

    def stop(self, request: Request) -> None:
        """It holds nothing any more."""
        self._remove(self._requests.index(request))

    def peak(self, num_tokens: float, output_left: float) -> float:
        """The most tokens that will be held at a time if one more starts now."""
        while self._requests and self._ends[-1] <= self._step:
            request, held = self._requests[-1], float(self._bases[-1]) + self._step
            self._remove(-1)
            self.start(request, held, max(1.0, self._output_left(request)))
        left = self._ends - self._step
        place = int(np.searchsorted(-left, -output_left))
        left = np.insert(left, place, output_left)
        bases = np.insert(self._bases + self._step, place, num_tokens)
        held = bases.cumsum() + np.arange(1, len(left) + 1) * left
        return float(held.max())

    def _remove(self, place: int) -> None:
        del self._requests[place]
        self._ends = np.delete(self._ends, place)
        self._bases = np.delete(self._bases, place)
