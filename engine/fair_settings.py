"""Caps of fair admission."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FairSettings:
    """Caps from which the bound on unfairness follows; see `FairShare`."""

    quantum_ms: float
    """What a refill gives a tenant of weight 1."""
    overdraft_ms: float
    """How far gaps may be filled on credit, and what one request may make others compute again."""
    max_skips: int
    """Times that a request may be overtaken within its tenant, and by others while memory is being
    kept for it."""
    max_open: int
    """Requests that run or whose adapters are on their way."""
    max_drain_ms: float = 0.0
    """How long a request waits at most until others are drained for its adapter, and how far below
    zero tenants with resident adapters may go meanwhile."""
