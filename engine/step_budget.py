"""How much of prompts a step may compute, so that running requests get their tokens in time.

Each token of a request has a deadline, arrival + TTFT target + j · TPOT target, as in
https://arxiv.org/abs/2510.14392: what a request is ahead of its pace is slack that prompts may use,
and one long step costs nobody anything who is far enough ahead.

Of the sizes that fit, the one is taken that computes prompts fastest, since hardware has steps: of
129 rows the last may cost as much as 64 others, and waits for the next step then. Aligning work to
such steps is what "DCP" does (OSDI 2026), whose tail grew by it; here what aligning may put off is
put off a bounded number of times.
"""

import numpy as np
from numpy.typing import NDArray

from loraplex.engine.config import SchedulerConfig
from loraplex.engine.cost_errors import Choice
from loraplex.engine.cost_features import EDGES, Floats, StepFeatures
from loraplex.engine.costs_port import StepCosts
from loraplex.engine.draft import Draft

MAX_DEFERRALS = 4
"""Steps in a row that may leave tokens for later that would have been in time."""
_WORTH_IT = 1.05
"""Times as many tokens of prompts a millisecond as the largest size that fits; below that, later
tokens cost more than they save."""
_NUM_SIZES = 24


class StepBudget:
    """Bounds the prompts of steps in which others decode."""

    def __init__(self, costs: StepCosts, config: SchedulerConfig) -> None:
        self._costs = costs
        self._config = config
        self._num_deferrals = 0

    def bound(self, draft: Draft, demand: int, bytes_in_flight: int, now: float) -> None:
        """Take from the budget of a step what would make those late whose tokens are in it, and
        what is better computed in the next.

        `demand` is the number of prompt tokens that there are. As long as the cost model has
        learned little, `max_step_tokens` alone rules.
        """
        at_most = min(draft.budget, demand)
        if self._costs.num_steps < self._config.min_learned_steps or not len(draft.decodes):
            return
        slack = draft.slack_ms(now)
        fitting, chosen = self._sizes(draft.features(bytes_in_flight), slack, at_most)
        if chosen < at_most:
            draft.budget = chosen
            draft.is_bounded = fitting < at_most

    def prefill_tokens(self, step: StepFeatures, slack: float, at_most: int) -> int:
        """Tokens of prompts to add to a step so that it takes at most `slack` ms, by prediction.

        Between `min_prefill_tokens`, so that prompts advance whatever is late, and `at_most`.
        """
        return self._sizes(step, slack, at_most)[1]

    def _sizes(self, step: StepFeatures, slack: float, at_most: int) -> tuple[int, int]:
        """The largest size that fits, and the one to take."""
        floor = min(self._config.min_prefill_tokens, at_most)
        sizes = _candidates(step.num_tokens, floor, at_most)
        if len(sizes) == 1:
            return at_most, at_most
        times = self._costs.predict_chunks_ms(step, sizes, 0)
        fitting = int(np.flatnonzero(times <= slack).max(initial=0))
        chosen = self._aligned(sizes / np.maximum(times, 1e-9), fitting)
        self._costs.note_choice(Choice(step, tuple(sizes.tolist()), chosen, slack))
        return int(sizes[fitting]), int(sizes[chosen])

    def _aligned(self, rates: Floats, fitting: int) -> int:
        """The fastest size up to the one that fits; that one itself, where no other is clearly
        faster or tokens have been put off for long."""
        best = int(rates[: fitting + 1].argmax())
        if rates[best] < _WORTH_IT * rates[fitting] or self._num_deferrals == MAX_DEFERRALS:
            self._num_deferrals = 0
            return fitting
        self._num_deferrals += 1
        return best


def _candidates(num_tokens: int, floor: int, at_most: int) -> NDArray[np.int64]:
    """Sizes from `floor` to `at_most`, those among them that end at an edge of the hardware."""
    evenly = floor + (at_most - floor) * np.arange(_NUM_SIZES + 1) // _NUM_SIZES
    at_edges = [edge - num_tokens for edge in EDGES if floor < edge - num_tokens < at_most]
    return np.unique(np.append(evenly, at_edges).astype(np.int64))
