"""The model that is not there: what a step asks of the device, and where outputs end."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.cost_features import StepFeatures
from loraplex.engine.plan import Chunk, Roster, StepOutput, StepPlan

END = 1
"""The token by which it ends an output; all others are 0."""


class ScriptedModel:
    """Ends each output where it is told to."""

    def __init__(self, output_tokens: Mapping[str, int]) -> None:
        """`output_tokens` of each request."""
        self._last = {key: count - 1 for key, count in output_tokens.items()}
        self._roster: Roster | None = None
        self._last_of_roster: NDArray[np.int64] = np.zeros(0, np.int64)

    def run(self, plan: StepPlan) -> StepOutput:
        """The tokens of a step."""
        roster = plan.decodes.roster
        if roster is not self._roster:
            self._roster = roster
            self._last_of_roster = np.array([self._last[key] for key in roster.keys], np.int64)
        decodes = plan.decodes.draws >= self._last_of_roster
        prompts = [self._ends(chunk) for chunk in plan.prefills if chunk.sample is not None]
        ends = np.concatenate((decodes, np.array(prompts, bool)))
        return StepOutput(np.where(ends, END, 0).astype(np.int64))

    def token(self, chunk: Chunk) -> int:
        """That ends the output, or not, after the prompt's last chunk."""
        return END if self._ends(chunk) else 0

    def _ends(self, chunk: Chunk) -> bool:
        assert chunk.sample is not None
        return chunk.sample.position >= self._last[chunk.request_id]


def plan_features(
    plan: StepPlan, rank: Callable[[AdapterKey], float], bytes_in_flight: int
) -> StepFeatures:
    """What a step asks of the device; `rank` is in the unit of whoever predicts its time."""
    prefill_tokens = squared = context = 0
    for chunk in plan.prefills:
        size = len(chunk.token_ids)
        prefill_tokens += size
        squared += size * size
        context += size * chunk.start
    num_decodes = len(plan.decodes)
    adapters = [adapter for adapter in plan.adapters() if adapter is not None]
    return StepFeatures(
        num_tokens=num_decodes + prefill_tokens,
        num_decodes=num_decodes,
        prefill_tokens=prefill_tokens,
        prefill_squared=squared,
        prefill_context=context,
        kv_tokens=int(plan.decodes.positions.sum()),
        sum_rank=float(sum(map(rank, adapters))),
        num_adapters=len(adapters),
        bytes_in_flight=bytes_in_flight,
    )


def begun(plan: StepPlan) -> Iterator[tuple[str, int]]:
    """Requests that may begin in this step, with the tokens that are in the cache before it: those
    with a chunk of a prompt, and those of whose prompt one token was left."""
    for row in np.flatnonzero(plan.decodes.draws == 0).tolist():
        yield plan.decodes.roster.keys[row], int(plan.decodes.positions[row])
    for chunk in (*plan.prefills, *(cold.chunk for cold in plan.cold)):
        yield chunk.request_id, chunk.start
