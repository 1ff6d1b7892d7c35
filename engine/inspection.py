"""A look into the engine that its own thread takes."""

from collections.abc import Callable
from dataclasses import dataclass

from loraplex.engine.residency_protocol import Pin, ResidencyReport


@dataclass(frozen=True, slots=True)
class Inspection:
    """Somebody asks which adapters are where."""

    query_id: int
    reply: Callable[[ResidencyReport], None]
    """Called on the engine's thread."""
    only: Pin | None = None
    """See `ResidencyQuery`."""
