"""A look into the engine that its own thread takes."""

from collections.abc import Callable
from dataclasses import dataclass

from loraplex.engine.residency_protocol import (
    ResidencyQuery,
    ResidencyReport,
    TierQuery,
    TierReport,
)


@dataclass(frozen=True, slots=True)
class Inspection:
    """Somebody asks which adapters are where, or where one is."""

    query: ResidencyQuery | TierQuery
    reply: Callable[[ResidencyReport | TierReport], None]
    """Called on the engine's thread."""
