"""Chameleon's queues by size (https://arxiv.org/abs/2411.17741): fair to sizes, not to tenants."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from loraplex.engine.admission import AdmissionView, Blocked
from loraplex.engine.ahead_sample import Ahead
from loraplex.engine.lengths import OutputLengths
from loraplex.engine.request import Request, Status

_MAX_QUEUES = 4
_REGROUP_EVERY_S = 300.0
_WINDOW = 2000
_LATENCY_TARGET_S = 10.0


@dataclass(frozen=True, slots=True)
class _Size:
    weight: float
    """The paper's WRS."""
    tokens: float
    arrival_s: float


class SizeQueues:
    """Up to four queues by weighted size; each may hold a quota of the pool's tokens.

    First each queue is served up to its quota, small sizes before large; then what is left, in the
    same order. A head that finds no memory is passed over only by requests that are predicted to
    end before there will be room for it.
    """

    def __init__(self, pool_tokens: int, lengths: OutputLengths) -> None:
        self._pool_tokens = pool_tokens
        self._lengths = lengths
        self._queues: list[OrderedDict[str, Request]] = [OrderedDict()]
        self._cuts: list[float] = []
        self._quotas = [float(pool_tokens)]
        self._sizes: dict[str, _Size] = {}
        self._recent: deque[_Size] = deque(maxlen=_WINDOW)
        self._largest = [1.0, 1.0, 1.0]
        self._running: dict[str, float] = {}
        self._regrouped_s = 0.0
        self._blocked_by: Blocked | None = None

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    def add(self, request: Request, now: float) -> None:
        """Take a request into the queue of its size."""
        size = self._size(request, now)
        self._sizes[request.key] = size
        self._recent.append(size)
        if now - self._regrouped_s > _REGROUP_EVERY_S or len(self._recent) == 100:
            self._regroup(now)
        self._queue(request)[request.key] = request

    def put_back(self, request: Request) -> None:
        """Take a request back that was pushed out, before its queue's others."""
        queue = self._queue(request)
        queue[request.key] = request
        queue.move_to_end(request.key, last=False)

    def remove(self, request: Request) -> None:
        """Forget a request that ended while it waited."""
        del self._queue(request)[request.key]
        del self._sizes[request.key]

    def ahead(self, request: Request, cost_ms: Callable[[Request], float]) -> Iterable[Ahead]:  # noqa: ARG002  of the protocol
        """Nobody asks: none of its requests has a deadline."""
        return ()

    def candidates(self, now: float, view: AdmissionView) -> Iterator[Request]:  # noqa: ARG002  of the protocol
        """Up to each queue's quota, then what is left."""
        wait_ms = float("inf")
        for within_quota in (True, False):
            for number, queue in enumerate(self._queues):
                for request in list(queue.values()):
                    if within_quota and not self._within_quota(number, request):
                        break
                    if view.predicted_run_ms(request) > wait_ms:
                        continue
                    self._blocked_by = None
                    yield request
                    if self._blocked_by in {Blocked.SLOTS, Blocked.STEP}:
                        return
                    if self._blocked_by in {Blocked.KV_BLOCKS, Blocked.ADAPTER_MEMORY}:
                        wait_ms = min(wait_ms, view.predicted_wait_ms(request))

    def admitted(self, request: Request) -> None:
        """It runs, and counts against its queue's quota."""
        del self._queue(request)[request.key]
        self._running[request.key] = self._sizes[request.key].tokens

    def blocked(self, request: Request, by: Blocked) -> None:  # noqa: ARG002  of the protocol
        """Remember why."""
        self._blocked_by = by

    def measured(self, shares_ms: Mapping[str, float]) -> None:
        """Time is nothing to it."""

    def ended(self, request: Request) -> None:
        """It runs no more."""
        del self._running[request.key]
        if request.status is Status.FINISHED:
            del self._sizes[request.key]

    def makes_room(self, request: Request, victim: Request, recompute_ms: float) -> bool:  # noqa: ARG002  of the protocol
        """Who was admitted first goes on."""
        return True

    def yields(self, request: Request) -> bool:  # noqa: ARG002  of the protocol
        """Nobody does."""
        return False

    def keeps_adapter(self, request: Request) -> bool:  # noqa: ARG002  of the protocol
        """None does."""
        return False

    def upcoming(self) -> Iterator[Request]:
        """Small sizes before large."""
        for queue in self._queues:
            yield from queue.values()

    def _size(self, request: Request, now: float) -> _Size:
        sampling = request.submission.sampling
        output = self._lengths.predict(request.adapter, sampling.max_tokens)
        parts = (request.num_prompt_tokens, output, max(1, request.submission.adapter_bytes))
        self._largest = [max(a, b) for a, b in zip(self._largest, parts, strict=True)]
        prompt, out, adapter = (p / m for p, m in zip(parts, self._largest, strict=True))
        return _Size((0.4 * prompt + 0.6 * out) * adapter, parts[0] + output, now)

    def _queue_number(self, request: Request) -> int:
        return int(np.searchsorted(self._cuts, self._sizes[request.key].weight))

    def _queue(self, request: Request) -> OrderedDict[str, Request]:
        return self._queues[self._queue_number(request)]

    def _within_quota(self, number: int, request: Request) -> bool:
        held = sum(
            tokens
            for key, tokens in self._running.items()
            if np.searchsorted(self._cuts, self._sizes[key].weight) == number
        )
        # One request always may run, however small the quota.
        return held == 0 or held + self._sizes[request.key].tokens <= self._quotas[number]

    def _regroup(self, now: float) -> None:
        """Cut sizes anew half-way between the centres of clusters, and deal out quotas."""
        self._regrouped_s = now
        weights = np.array([size.weight for size in self._recent])
        tokens = np.array([size.tokens for size in self._recent])
        centres = _centres(weights)
        self._cuts = ((centres[1:] + centres[:-1]) / 2).tolist()
        numbers = np.searchsorted(self._cuts, weights)
        span_s = max(now - self._recent[0].arrival_s, 1.0)
        needs = []
        for number in range(len(centres)):
            own = tokens[numbers == number]
            mean = float(own.mean()) if len(own) else 0.0
            # M/M/1: mean size × mean time × (1 / target + arrival rate), a time per token of 40 ms.
            needs.append(mean * (mean * 0.04) * (1 / _LATENCY_TARGET_S + len(own) / span_s))
        total = sum(needs) or 1.0
        self._quotas = [self._pool_tokens * need / total for need in needs]
        waiting = [request for queue in self._queues for request in queue.values()]
        self._queues = [OrderedDict() for _ in centres]
        for request in waiting:
            self._queue(request)[request.key] = request


def _centres(values: np.ndarray) -> np.ndarray:
    """Centres of up to four clusters on a line, ascending (Lloyd's algorithm from quantiles)."""
    centres = np.unique(np.quantile(values, np.linspace(0.1, 0.9, _MAX_QUEUES)))
    for _ in range(20):
        nearest = np.abs(values[:, None] - centres).argmin(1)
        centres = np.array([values[nearest == i].mean() for i in np.unique(nearest)])
    return np.unique(centres)
