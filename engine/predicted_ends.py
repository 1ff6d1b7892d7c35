"""When those that run are likely to end, and what they leave."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate

from loraplex.engine.request import Request


class PredictedEnds:
    """Of requests that run: steps until each ends, and what all that end by then have held. Sorted
    once, so that many who wait can ask."""

    def __init__(self, running: Sequence[Request], steps_left: Callable[[Request], float]) -> None:
        """`steps_left` predicts one request's."""
        ends = sorted(((steps_left(each), each) for each in running), key=lambda end: end[0])
        self._steps = [steps for steps, _ in ends]
        self._blocks = list(accumulate(len(each.block_table) for _, each in ends))
        self._bytes = list(accumulate(_bytes_left([each for _, each in ends])))

    def steps_until(self, num_blocks: int, num_bytes: int) -> float:
        """Until so many KV blocks, and bytes of adapters, are left; as many steps as the last one
        takes if they never are, and 0 if none are needed."""
        if not self._steps or (num_blocks <= 0 and num_bytes <= 0):
            return 0.0
        first = max(bisect_left(self._blocks, num_blocks), bisect_left(self._bytes, num_bytes))
        return self._steps[min(first, len(self._steps) - 1)]


def _bytes_left(ends: list[Request]) -> list[int]:
    """What each end leaves: the adapter, if it is the last that runs on it."""
    num_leases = Counter(each.adapter for each in ends)
    left: list[int] = []
    for each in ends:
        num_leases[each.adapter] -= 1
        left.append(0 if num_leases[each.adapter] else each.submission.adapter_bytes)
    return left
