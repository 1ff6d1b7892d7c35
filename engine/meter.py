"""Divides the time of steps among their requests, and has the cost model learn from it."""

from collections.abc import Callable, Mapping

from loraplex.engine.costs_port import StepCosts
from loraplex.engine.draft import Draft
from loraplex.engine.request import Request

MAX_ALIKE = 16
"""Steps of the same requests that are divided as one."""


class Meter:
    """Steps in which the same requests decode differ by a token of context each, so a few of them
    are divided together, by the last. What is not told yet is told before it matters: call `flush`
    before a request ends."""

    def __init__(self, costs: StepCosts, tell: Callable[[Mapping[str, float]], None]) -> None:
        """`tell` is given each request's part of the time, in ms, by `Request.key`."""
        self._costs = costs
        self._tell = tell
        self._draft: Draft | None = None
        self._requests: list[Request] = []
        self._pending_ms = 0.0
        self._num_pending = 0
        self.step_ms = 0.0
        """A recent step's time, smoothed; 0 before the first."""

    def note(self, draft: Draft, bytes_in_flight: int, ms: float) -> None:
        """A step took `ms`."""
        rate = 0.1 if self.step_ms else 1.0
        self.step_ms += rate * (ms - self.step_ms)
        self._costs.observe(draft.features(bytes_in_flight), ms)
        if draft.has_prefills or draft.requests != self._requests or self._num_pending >= MAX_ALIKE:
            self.flush()
        self._draft = draft
        self._requests = [] if draft.has_prefills else draft.requests
        self._pending_ms += ms
        self._num_pending += 1

    def flush(self) -> None:
        """Tell what is pending."""
        if not self._num_pending or self._draft is None:
            return
        requests = self._draft.requests
        shares = self._costs.shares(self._draft.rows(), self._pending_ms)
        self._pending_ms, self._num_pending = 0.0, 0
        parts = zip(requests, shares, strict=True)
        self._tell({request.key: float(share) for request, share in parts})
