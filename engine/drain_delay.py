"""How long requests wait for memory before others are drained for it."""

from loraplex.engine.admission import AdmissionView
from loraplex.engine.request import Request

_MOST_PUT_OFF = 16
"""Requests for which others are not drained yet, each time."""


class DrainDelay:
    """To make those that run on other adapters end takes a time in which the machine is used less
    and less. A request whose adapter finds no memory waits for as long as that would take, at
    first, up to a cap: at worst twice as long as would have been best, as with any switch whose use
    is not known before (https://doi.org/10.1007/BF01762111). So adapters do not change places more
    often than that is worth.
    """

    def __init__(self, cap_ms: float) -> None:
        self._cap_ms = cap_ms
        self._refused_at: dict[str, float] = {}
        self._now = 0.0
        self._num_put_off = 0
        self._longest_ms = 0.0

    @property
    def longest_ms(self) -> float:
        """The most that draining would cost of what is put off since `begin`."""
        return self._longest_ms

    @property
    def is_full(self) -> bool:
        """True if so many are put off since `begin` that no other is to be asked for."""
        return self._num_put_off >= _MOST_PUT_OFF

    def begin(self, now: float) -> None:
        """Before candidates are looked at anew."""
        self._now, self._num_put_off, self._longest_ms = now, 0, 0.0

    def puts_off(self, request: Request, view: AdmissionView) -> bool:
        """False if a request whose adapter found no memory has waited for as long as a drain would
        take; then others are to be drained for it."""
        # Nothing to wait for: what holds the memory is on its way and does not run yet.
        drain_ms = min(self._cap_ms, view.predicted_wait_ms(request) or self._cap_ms)
        since = self._refused_at.setdefault(request.key, self._now)
        if (self._now - since) * 1e3 >= drain_ms:
            return False
        self._num_put_off += 1
        self._longest_ms = max(self._longest_ms, drain_ms)
        return True

    def forget(self, request: Request) -> None:
        """It needs memory no more, or has it."""
        self._refused_at.pop(request.key, None)
