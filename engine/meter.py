"""Divides the time of steps among their requests, and has the cost model learn from it."""

from collections.abc import Callable, Mapping

import numpy as np

from loraplex.engine.costs_port import StepCosts
from loraplex.engine.draft import Draft
from loraplex.engine.request import Request

MAX_ALIKE = 16
"""Steps of the same requests that are divided as one, and until those that decode are told."""


class Meter:
    """Keeps what each of those that decode has used, and tells it now and then, and before the end:
    call `settle` before a request leaves its row, or ends without one.

    Steps in which the same requests decode differ by a token of context each, so a few of them are
    divided together, by the last.
    """

    def __init__(
        self, costs: StepCosts, tell: Callable[[Mapping[str, float]], None], num_rows: int
    ) -> None:
        """`tell` is given parts of the time, ms by `Request.key`; `num_rows` of `DecodeRows`."""
        self._costs = costs
        self._tell = tell
        self._draft: Draft | None = None
        """Of the steps that are not divided yet."""
        self._pending_ms = 0.0
        self._num_pending = 0
        self._used_ms = np.zeros(num_rows)
        self._num_untold = 0
        self.step_ms = 0.0
        """A recent step's time, smoothed; 0 before the first."""

    def note(self, draft: Draft, bytes_in_flight: int, ms: float) -> None:
        """A step took `ms`. Nothing is learned from one that the host assisted, and what it took
        longer than such steps do is used by those that were assisted."""
        rate = 0.1 if self.step_ms else 1.0
        self.step_ms += rate * (ms - self.step_ms)
        features = draft.features(bytes_in_flight)
        assisted = [part.request.key for part in draft.passes if part.is_assisted]
        if assisted:
            excess_ms = max(0.0, ms - self._costs.predict_ms(features))
            self._tell(dict.fromkeys(assisted, excess_ms / len(assisted)))
            ms -= excess_ms
        else:
            self._costs.observe(features, ms)
        if self._num_pending == MAX_ALIKE or not self._is_like(draft):
            self._divide()
        self._draft = draft
        self._pending_ms += ms
        self._num_pending += 1
        self._num_untold += 1
        if self._num_untold == MAX_ALIKE:
            self._divide()
            self._tell_all(draft)

    def settle(self, request: Request) -> None:
        """Tell all that a request has used."""
        self._divide()
        if request.row >= 0:
            used_ms = float(self._used_ms[request.row])
            self._used_ms[request.row] = 0.0
            self._tell({request.key: used_ms})

    def _is_like(self, draft: Draft) -> bool:
        before = self._draft
        return (
            before is not None
            and before.selection is draft.selection
            and not (before.chunks or draft.chunks or before.passes or draft.passes)
        )

    def _divide(self) -> None:
        draft = self._draft
        if draft is None or not self._num_pending:
            return
        shares = self._costs.shares(draft.rows(), self._pending_ms)
        self._pending_ms, self._num_pending = 0.0, 0
        num_decodes = len(draft.selection)
        self._used_ms[draft.selection.rows] += shares[:num_decodes]
        if prompts := draft.prompts:
            of_prompts: dict[str, float] = {}
            parts = zip(prompts, shares[num_decodes:].tolist(), strict=True)
            for request, ms in parts:  # of one request there may be two
                of_prompts[request.key] = of_prompts.get(request.key, 0.0) + ms
            self._tell(of_prompts)

    def _tell_all(self, draft: Draft) -> None:
        """Those that decoded in the newest step stand for all: others are told when they end."""
        selection = draft.selection
        used_ms = self._used_ms[selection.rows]
        self._used_ms[selection.rows] = 0.0
        self._num_untold = 0
        self._tell(dict(zip(selection.roster.keys, used_ms.tolist(), strict=True)))
