"""What the engine asks of whoever copies adapters to the device, and they of whoever reads them."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.plan import StepPlan

LoadRoute = Literal["store", "host"]
"""Where a load comes from."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """The end of one transfer."""

    key: AdapterKey
    error: Exception | None = None
    """Why the adapter did not come; None if it is there."""
    route: LoadRoute = "store"
    seconds: float = 0.0
    """From its start in a plan to its end."""
    num_bytes: int = 0
    """That were copied to the device."""
    copy_s: float = 0.0
    """That the copy alone took: without reading, and without waiting for others and for grants."""


class Progress(NamedTuple):
    """How far a transfer is."""

    key: AdapterKey
    num_layers: int
    """Layers that are on the device."""
    of_layers: int
    """Layers that it has; 0 until that is known."""
    is_open: bool = False
    """True once it may be used in part."""


class AdapterTransfers(Protocol):
    """Copies beside the steps, never inside one. Loads go before prefetches that have not begun."""

    def start(self, plan: StepPlan) -> None:
        """Give up the memory of what the plan evicts, on its way or there; then start its loads
        and prefetches, treat prefetches that it claims as loads, and let so many bytes be copied
        as it says. Never waits."""
        ...

    def arrivals(self) -> list[Arrival]:
        """All transfers that have ended since the last call, but those that were given up."""
        ...


class AdapterSource(Protocol):
    """Where adapters come from. Called from the threads that load."""

    def read(self, digest: str) -> Any:  # noqa: ANN401  what `place` takes is its own matter
        """Read an adapter into the host's memory and verify it; raises what goes wrong."""
        ...

    def place(self, on_host: Any, progress: LoadProgress) -> Any:  # noqa: ANN401  each source has its own
        """Copy what was read to the device, as steps use it; `progress` is told of each layer, and
        says when it may be copied."""
        ...
