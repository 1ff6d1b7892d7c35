"""Which tier a request is served in: what it asks for, as far as its tenant may."""

from collections.abc import Collection
from typing import Literal

ServiceTier = Literal["priority", "default", "flex"]
TIERS: tuple[ServiceTier, ...] = ("priority", "default", "flex")
"""From the first served to the last."""


def served_tier(asked: ServiceTier, allowed: Collection[str]) -> ServiceTier:
    """Return the tier asked for, or the next lower one that is allowed; if none is, the lowest
    that is. With nothing allowed it is `flex`."""
    lower = TIERS[TIERS.index(asked) :]
    choices = [*lower, *reversed(TIERS)]
    return next((tier for tier in choices if tier in allowed), "flex")
