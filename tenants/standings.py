"""How limits stand."""

from dataclasses import dataclass

from loraplex.tenants.scoped_limits import ScopedLimit


@dataclass(frozen=True, slots=True)
class Standing:
    """How a limit stands after a reservation, as headers and pages tell it."""

    limit: ScopedLimit
    used: int
    """Of a rate, what has not drained yet; of a budget, what was spent and what is reserved."""
    remaining: int
    """What still fits now, in whole units."""
    reset_s: float
    """Time until the whole limit is free again: of a budget, until its period ends; of a gauge,
    0, since that depends on others."""
