"""How adapters come to the device, and how requests go on meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from loraplex.adapters.spec import AdapterKey
from loraplex.engine.config import PrefetchMode, RouteMode
from loraplex.engine.simulation.copies import CopiesInside, CopyLink, Link
from loraplex.engine.simulation.devices import Device

Route = Literal["choose", "wait", "layer-wise", "assist", "inside"]
"""As the engine's own (`RouteMode`); `inside` a step, as engines do that load on demand, so that
all that decode wait for the copy."""


@dataclass(frozen=True, slots=True)
class Copying:
    """How adapters are copied; the first two are settings of the engine."""

    prefetch: PrefetchMode = "queue"
    max_transfer_bytes: int | None = None
    route: Route = "wait"
    num_assistants: int = 4
    """Processes that divide the host's part among them, at the rate of all of the host; 0 rules
    that route out."""

    @property
    def mode(self) -> RouteMode:
        """What the scheduler is told."""
        return "wait" if self.route == "inside" else self.route


def make_link(
    route: Route, device: Device, num_bytes: Callable[[AdapterKey], int], clock: Callable[[], float]
) -> Link:
    """`num_bytes` of an adapter; `clock` tells simulated seconds."""
    make = CopiesInside if route == "inside" else CopyLink
    return make(device.copy_bytes_per_s, num_bytes, clock)
