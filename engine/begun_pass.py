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
    part: float = 0.0
    """Of the forward pass, computed so far; and that may be after this step."""
    until_part: float = 0.0
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
        self.is_stuck = has_tried and output.part == self.part
        self.part = output.part
        self.num_layers, self.num_host_layers = output.num_layers, output.num_host_layers

    def next(self, until_part: float) -> PassPart:
        """What it takes to come so far."""
        part = until_part - self.part
        return PassPart(self.request, len(self.chunk.token_ids), self.chunk.start, part)

    def reach(self, num_ready: int) -> float:
        """How far it comes on so many layers, as if the adapter touched all layers alike."""
        part = num_ready / self.of_layers
        return part if part > self.part else 1.0
