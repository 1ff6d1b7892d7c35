"""How long requests wait for memory before others are drained for it."""

from loraplex.engine.admission import AdmissionView
from loraplex.engine.request import Request


class Holds:
    """To make those that run on other adapters end takes a time in which the machine is used less
    and less. A request whose adapter finds no memory waits for as long as that would take, at
    first, up to a cap: at worst twice as long as would have been best, as with any switch whose use
    is not known before (https://doi.org/10.1007/BF01762111). So adapters do not change places more
    often than that is worth.
    """

    def __init__(self, cap_ms: float) -> None:
        self._cap_ms = cap_ms
        self._refused_at: dict[str, float] = {}

    def drain_ms(self, request: Request, view: AdmissionView, now: float) -> float:
        """What it costs to drain memory for a request whose adapter found none; 0 if it has waited
        for so long that others are to be drained."""
        # Nothing to wait for: what holds the memory is on its way and does not run yet.
        drain_ms = min(self._cap_ms, view.predicted_wait_ms(request) or self._cap_ms)
        since = self._refused_at.setdefault(request.key, now)
        return drain_ms if (now - since) * 1e3 < drain_ms else 0.0

    def forget(self, request: Request) -> None:
        """It needs memory no more, or has it."""
        self._refused_at.pop(request.key, None)
