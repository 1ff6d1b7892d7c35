"""How a request goes on whose adapter is not on the device, by what is predicted to be fastest.

    wait         until all of the adapter is there, then compute the prompt as any other
    layer-wise   compute the prompt on the layers that have come, while others are copied
    assist       the same, and have the host compute the adapter's part of layers that have not

Prompts are computed in groups of layers, for other reasons, by "Layered Prefill" (MLSys 2026,
github.com/scale-snu/layered-prefill); assisted prefill is from https://arxiv.org/abs/2401.11240.
Pure Python; time is an argument.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from loraplex.engine.config import RouteMode
from loraplex.engine.cost_features import Row, StepFeatures
from loraplex.engine.costs_port import StepCosts

ColdRoute = Literal["wait", "layer-wise", "assist"]


class ColdStart(NamedTuple):
    """A request whose adapter is on its way, as far as its route depends on it."""

    num_tokens: int
    """Of its prompt, to be computed by a pass of its own."""
    num_context: int
    """Tokens before them, in the KV cache already."""
    rank: float
    """Of its adapter, in the cost model's sense."""
    bytes_ahead: int
    """Of other adapters that are copied before its own."""
    bytes_left: int
    """Of its adapter, that have not come."""
    num_layers: int
    """Of its adapter, that have come."""
    of_layers: int
    num_decodes: int
    """Rows of others that decode meanwhile: each step computes theirs too."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A route, and when each was predicted to end with the request's first token, in ms from now;
    routes that are ruled out are missing."""

    route: ColdRoute
    predicted_ms: Mapping[ColdRoute, float]


class Routes:
    """Predicts and chooses; learns from what happened. Belongs to the engine's thread."""

    def __init__(self, costs: StepCosts, mode: RouteMode, num_assistants: int) -> None:
        self._costs = costs
        self._mode = mode
        self._num_assistants = num_assistants
        self.copy_bytes_per_s = 1e9
        """Of late; as it is told."""

    def choose(self, cold: ColdStart) -> Decision:
        """The route whose first token is predicted to come first."""
        step = StepFeatures.of([Row(cold.num_tokens, cold.num_context, cold.rank, is_decode=False)])
        prefill_ms = self._costs.predict_ms(step)
        copy_ms = (cold.bytes_ahead + cold.bytes_left) / self.copy_bytes_per_s * 1e3
        left = max(1, cold.of_layers - cold.num_layers)
        predicted: dict[ColdRoute, float] = {
            "wait": copy_ms + prefill_ms,
            "layer-wise": max(copy_ms + prefill_ms / left, prefill_ms + copy_ms / left),
        }
        if self._num_assistants:
            predicted["assist"] = prefill_ms
        if self._mode != "choose":
            route: ColdRoute = self._mode if self._mode in predicted else "wait"
            return Decision(route, predicted)
        return Decision(min(predicted, key=predicted.__getitem__), predicted)

    def note_copy(self, num_bytes: int, seconds: float) -> None:
        """So many bytes went to the device in this time."""

    def note_host(self, num_tokens: int, num_bytes: int, ms: float) -> None:
        """The host computed the part of so many of an adapter's bytes for so many tokens, and a
        pass waited for it so long."""

    def note_first_token(self, decision: Decision, ms: float) -> None:
        """A request that went on as decided had computed its chunk so long after the decision."""
