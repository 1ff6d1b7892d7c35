"""How large an adapter may be; a platform may set smaller limits for a tenant."""

from collections.abc import Iterator
from dataclasses import dataclass

from loraplex.adapters.config import MAX_RANK
from loraplex.adapters.errors import Problem


@dataclass(frozen=True, slots=True)
class Limits:
    """Inclusive bounds on one adapter."""

    max_bytes: int = 4 * 1024**3
    """Of adapter_model.safetensors."""
    max_rank: int = MAX_RANK
    """Of any of its modules."""
    max_targets: int = 16_384
    """Modules and parameters that have a pair."""

    def problems(self, rank: int, num_targets: int) -> Iterator[Problem]:
        """Yield where an adapter exceeds them; its bytes are told before it is read."""
        if rank > self.max_rank:
            yield Problem("r", str(rank), f"ranks up to {self.max_rank} are allowed")
        if num_targets > self.max_targets:
            reason = f"names {num_targets} modules; at most {self.max_targets} are allowed"
            yield Problem("target_modules", "", reason)
