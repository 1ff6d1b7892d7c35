"""Finds a device's times in the log of a server that ran on it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loraplex.engine.cost_features import Floats
from loraplex.engine.simulation.devices import LinearTimes

_GRID_S = 0.05
_SHORTEST_OUTPUT = 40
"""Shorter outputs say little, since few steps lie between their first and last tokens."""
_SAME_STEP_S = 0.02


@dataclass(frozen=True, slots=True)
class Served:
    """One request of a log, in seconds since any moment."""

    first_token_s: float
    last_token_s: float
    prompt_tokens: int
    output_tokens: int


def fit_times(log: Sequence[Served]) -> LinearTimes:
    """Least squares over requests, relative to the time between a request's tokens.

    That time is a step's constant for each of its tokens but the first, and the context of all that
    ran meanwhile, read at each; and what prompts that were computed meanwhile took: a constant for
    each step with any, and a slope. Prompts whose first tokens came together were one step.
    """
    starts = np.array([request.first_token_s for request in log])
    ends = np.array([request.last_token_s for request in log])
    prompts = np.array([request.prompt_tokens for request in log], float)
    order = np.argsort(starts)
    started, prompts_before = starts[order], np.concatenate(([0.0], prompts[order].cumsum()))
    is_new = np.concatenate(([True], np.diff(started) > _SAME_STEP_S))
    steps_of_prompts = started[is_new]
    grid, context = _context(log)
    rows, times_ms = [], []
    for request, start, end in zip(log, starts, ends, strict=True):
        if request.output_tokens < _SHORTEST_OUTPUT:
            continue
        steps = request.output_tokens - 1
        low, high = np.searchsorted(grid, (start, end))
        after, before = np.searchsorted(started, (start, end), side="right")
        meanwhile = np.searchsorted(steps_of_prompts, (start + _SAME_STEP_S / 2, end))
        rows.append(
            (
                steps,
                meanwhile[1] - meanwhile[0],
                prompts_before[before] - prompts_before[after],
                steps * context[low:high].mean(),
            )
        )
        times_ms.append((end - start) * 1e3)
    times = np.array(times_ms)
    relative = np.array(rows, float) / times[:, None]
    solution, *_ = np.linalg.lstsq(relative, np.ones(len(times)), rcond=None)
    constant, with_prompts, per_prompt_token, per_kv_token = solution.tolist()
    return LinearTimes(constant, with_prompts, per_prompt_token, per_kv_token)


def _context(log: Sequence[Served]) -> tuple[Floats, Floats]:
    """Tokens of context of all that run, on a grid of time; outputs grow evenly."""
    until = max(request.last_token_s for request in log)
    grid = np.arange(0.0, until + _GRID_S, _GRID_S)
    context = np.zeros(len(grid))
    for request in log:
        low, high = np.searchsorted(grid, (request.first_token_s, request.last_token_s))
        grown = np.linspace(0, request.output_tokens, max(high - low, 0))
        context[low:high] += request.prompt_tokens + grown
    return grid, context
