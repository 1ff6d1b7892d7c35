"""What the engine asks of whoever copies adapters to the device."""

from dataclasses import dataclass
from typing import Protocol

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.plan import StepPlan


@dataclass(frozen=True, slots=True)
class Arrival:
    """The end of one transfer."""

    key: AdapterKey
    error: Exception | None = None
    """Why the adapter did not come; None if it is there."""


class AdapterTransfers(Protocol):
    """Copies beside the steps, never inside one. Loads go before prefetches that have not begun."""

    def start(self, plan: StepPlan) -> None:
        """Give up the memory of what the plan evicts, on its way or there; then start its loads
        and prefetches, and treat prefetches that it claims as loads. Never waits."""
        ...

    def arrivals(self) -> list[Arrival]:
        """All transfers that have ended since the last call, but those that were given up."""
        ...
