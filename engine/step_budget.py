"""How much of prompts a step may compute, so that running requests get their tokens in time.

Each token of a request has a deadline, arrival + TTFT target + j · TPOT target, as in
https://arxiv.org/abs/2510.14392: what a request is ahead of its pace is slack that prompts may use,
and one long step costs nobody anything who is far enough ahead.
"""

from math import inf

import numpy as np

from loraplex.engine.config import SchedulerConfig
from loraplex.engine.cost_features import StepFeatures
from loraplex.engine.costs_port import StepCosts
from loraplex.engine.draft import Draft

_NUM_SIZES = 24


def bound_prefills(
    draft: Draft, costs: StepCosts, config: SchedulerConfig, bytes_in_flight: int, now: float
) -> None:
    """Take from the budget of a step what would make those late whose tokens are in it.

    As long as the cost model has learned little, `max_step_tokens` alone rules.
    """
    if costs.num_steps < config.min_learned_steps:
        return
    slack = draft.slack_ms(now)
    if slack < inf:
        features = draft.features(bytes_in_flight)
        fitting = prefill_tokens(costs, features, slack, draft.budget, config.min_prefill_tokens)
        draft.is_bounded = fitting < draft.budget
        draft.budget = fitting


def prefill_tokens(
    costs: StepCosts, step: StepFeatures, slack: float, at_most: int, at_least: int
) -> int:
    """Tokens of prompts to add to a step so that it takes at most `slack` ms, by prediction.

    Between `at_least`, so that prompts advance whatever is late, and `at_most`.
    """
    if costs.predict_ms(step.with_chunk(at_most, 0)) <= slack:
        return at_most
    floor = min(at_least, at_most)
    sizes = floor + (at_most - floor) * np.arange(_NUM_SIZES + 1) // _NUM_SIZES
    fitting = sizes[costs.predict_chunks_ms(step, sizes, 0) <= slack]
    return int(fitting.max(initial=floor))
