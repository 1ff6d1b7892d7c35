"""How many bytes of adapters may go to the device while a step runs."""

from typing import Final

from loraplex.engine.config import SchedulerConfig
from loraplex.engine.costs_port import StepCosts
from loraplex.engine.draft import Draft
from loraplex.engine.routes import Routes

LEAST_PART: Final = 8
"""One part in so many of what the link carries is always for adapters: what is swapped may fill it
step after step, and the requests that hold its blocks may be those that wait for a load."""


class CopyBudget:
    """What the link carries in the time that a step is predicted to take, or has taken of late as
    long as that is not learned. KV blocks that are swapped come first, and loads and prefetches get
    what is left: so decodes wait for no copy, but for a small part where much is swapped."""

    def __init__(self, config: SchedulerConfig, costs: StepCosts, routes: Routes) -> None:
        self._config = config
        self._costs = costs
        self._routes = routes

    def of(self, draft: Draft, bytes_in_flight: int, recent_ms: float) -> int | None:
        """Of the step so far, where a step took `recent_ms` of late; None for no bound: nobody
        decodes, or no step was ever timed."""
        if not len(draft.selection):
            return None
        step_ms = recent_ms
        if self._costs.num_steps >= self._config.min_learned_steps:
            step_ms = self._costs.predict_ms(draft.features(bytes_in_flight))
        if not step_ms:
            return None
        copies = (*draft.copies_out, *draft.copies_in)
        num_blocks = sum(len(copy.host_blocks) for copy in copies)
        link_bytes = int(self._routes.copy_bytes_per_s * step_ms / 1e3)
        left_bytes = link_bytes - num_blocks * self._config.kv_block_bytes
        return max(left_bytes, -(-link_bytes // LEAST_PART))
