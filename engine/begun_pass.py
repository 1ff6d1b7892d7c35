"""One chunk of a prompt on its way through the layers, and what was decided for it."""

from dataclasses import dataclass

from loraplex.engine.draft import PassPart
from loraplex.engine.plan import Chunk, ColdOutput
from loraplex.engine.request import Request
from loraplex.engine.route_decisions import Decided


@dataclass(slots=True, eq=False)
class BegunPass:
    """One chunk on its way through the layers."""

    request: Request
    chunk: Chunk
    of_layers: int
    asked: Decided
    num_layers: int = 0
    """Computed so far; of these, by the host; and that may have been after this step."""
    num_host_layers: int = 0
    until_layer: int = 0
    advances: bool = False
    """In this step."""
    is_stuck: bool = False
    """True if it did not come further when it last could: the host does not help it."""

    @property
    def may_assist(self) -> bool:
        """True if the host may compute layers that have not come."""
        return self.asked.decision.route == "assist"

    def take(self, output: ColdOutput) -> None:
        """It has come so far."""
        has_tried = self.advances or self.is_stuck
        self.is_stuck = has_tried and output.num_layers == self.num_layers
        self.num_layers, self.num_host_layers = output.num_layers, output.num_host_layers

    def part(self, until_layer: int) -> PassPart:
        """What it takes to come so far."""
        part = (until_layer - self.num_layers) / self.of_layers
        return PassPart(self.request, len(self.chunk.token_ids), self.chunk.start, part)
