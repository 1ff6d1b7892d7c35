"""How many bytes of adapters may go to the device while a step runs."""

from loraplex.engine.config import SchedulerConfig
from loraplex.engine.costs_port import StepCosts
from loraplex.engine.draft import Draft
from loraplex.engine.routes import Routes


class CopyBudget:
    """What the link carries in the time that a step is predicted to take. KV blocks that are
    swapped come first, and loads and prefetches get what is left: so decodes wait for no copy."""

    def __init__(self, config: SchedulerConfig, costs: StepCosts, routes: Routes) -> None:
        self._config = config
        self._costs = costs
        self._routes = routes

    def of(self, draft: Draft, bytes_in_flight: int) -> int | None:
        """Of the step so far; None for no bound: nobody decodes, or step times are not learned."""
        if not len(draft.selection) or self._costs.num_steps < self._config.min_learned_steps:
            return None
        step_ms = self._costs.predict_ms(draft.features(bytes_in_flight))
        copies = (*draft.copies_out, *draft.copies_in)
        num_blocks = sum(len(copy.host_blocks) for copy in copies)
        link_bytes = int(self._routes.copy_bytes_per_s * step_ms / 1e3)
        return max(0, link_bytes - num_blocks * self._config.kv_block_bytes)
