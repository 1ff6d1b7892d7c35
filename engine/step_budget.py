"""How much of prompts a step may compute, so that running requests get their tokens in time.

Each token of a request has a deadline, arrival + TTFT target + j · TPOT target, as in
https://arxiv.org/abs/2510.14392: what a request is ahead of its pace is slack that prompts may use,
and one long step costs nobody anything who is far enough ahead.

Of the sizes that fit, the one is taken that computes prompts fastest, since hardware has steps: of
129 rows the last may cost as much as 64 others, and waits for the next step then. Aligning work to
such steps is what "DCP" does (OSDI 2026), whose tail grew by it; here what aligning may put off is
put off a bounded number of times.
"""

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loraplex.engine.config import SchedulerConfig
from loraplex.engine.cost_errors import Choice
from loraplex.engine.cost_features import EDGES, Floats, StepFeatures
from loraplex.engine.costs_port import StepCosts
from loraplex.engine.draft import Draft

MAX_DEFERRALS = 4
"""Steps in a row that may leave tokens for later that would have been in time."""
_WORTH_IT = 0.05
"""Part by which a size must be faster than the largest that fits: what is put off costs too."""
_ERRORS = 2.0
"""The same in standard deviations of the predictions' errors, where that is more."""
_NUM_SIZES = 24


class Demand(NamedTuple):
    """Prompts that could be computed in a step."""

    num_tokens: int
    num_prompts: int

    @classmethod
    def of(cls, begun: Iterable[int], num_tokens: int, num_prompts: int) -> "Demand":
        """Of prompts that have begun, by what could be computed of each, and of so many more with
        so many tokens."""
        left = [num_left for num_left in begun if num_left]
        return cls(sum(left) + num_tokens, len(left) + num_prompts)

    @property
    def mean_tokens(self) -> float:
        """Of one prompt."""
        return self.num_tokens / max(1, self.num_prompts)


class StepBudget:
    """Bounds the prompts of steps in which others decode."""

    def __init__(self, costs: StepCosts, config: SchedulerConfig) -> None:
        self._costs = costs
        self._config = config
        self._num_deferrals = 0

    def bound(self, draft: Draft, demand: Demand, bytes_in_flight: int, now: float) -> None:
        """Take from the budget of a step what would make those late whose tokens are in it, and
        what is better computed in the next.

        As long as the cost model has learned little, `max_step_tokens` alone rules.
        """
        if self._costs.num_steps < self._config.min_learned_steps or not len(draft.selection):
            return
        at_most = min(draft.budget, demand.num_tokens)
        step = draft.features(bytes_in_flight)
        fitting, chosen = self.prefill_tokens(
            step, draft.slack_ms(now), at_most, demand.mean_tokens
        )
        if chosen < at_most:
            draft.budget = chosen
            draft.is_bounded = fitting < at_most

    def prefill_tokens(
        self, step: StepFeatures, slack: float, at_most: int, longest: float = inf
    ) -> tuple[int, int]:
        """Tokens of prompts to add to a step so that it takes at most `slack` ms, by prediction:
        the most that fit, and what to take of that.

        Between `min_prefill_tokens`, so that prompts advance whatever is late, and `at_most`; of
        prompts of about `longest` tokens.
        """
        floor = min(self._config.min_prefill_tokens, at_most)
        if floor == at_most:
            return at_most, at_most
        sizes = _candidates(step.num_tokens, floor, at_most)
        fits = np.flatnonzero(self._costs.predict_chunks_ms(step, sizes, 0, longest) <= slack)
        fitting = int(fits[-1]) if len(fits) else 0
        # Attention within a prompt costs what it costs in any chunks, so that it does not count.
        times = self._costs.predict_chunks_ms(step, sizes, 0, 0)
        chosen = self._aligned(sizes / np.maximum(times, 1e-9), fitting)
        self._costs.note_choice(Choice(step, sizes, chosen, slack))
        return int(sizes[fitting]), int(sizes[chosen])

    def _aligned(self, rates: Floats, fitting: int) -> int:
        """The fastest size up to the one that fits; that one itself, where no other is clearly
        faster or tokens have been put off for long."""
        best = int(rates[: fitting + 1].argmax())
        gain = rates[best] / rates[fitting] - 1.0
        is_worth_it = gain >= max(_WORTH_IT, _ERRORS * self._costs.error)
        if not is_worth_it or self._num_deferrals == MAX_DEFERRALS:
            self._num_deferrals = 0
            return fitting
        self._num_deferrals += 1
        return best


def _candidates(num_tokens: int, floor: int, at_most: int) -> NDArray[np.int64]:
    """Sizes from `floor` to `at_most`, those among them that end at an edge of the hardware."""
    sizes = {floor + (at_most - floor) * i // _NUM_SIZES for i in range(_NUM_SIZES + 1)}
    sizes.update(edge - num_tokens for edge in EDGES if floor < edge - num_tokens < at_most)
    return np.array(sorted(sizes))
