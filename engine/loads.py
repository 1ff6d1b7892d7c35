"""Adapters that are on their way, and who waits for them."""

from collections.abc import Iterable

from loraplex.adapters.residency import Residency, State
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.request import Request, Status


class Loads:
    """Starts loads, notices that they have ended, and keeps the clocks of those who wait."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self._num_bytes: dict[AdapterKey, int] = {}

    @property
    def bytes_in_flight(self) -> int:
        """Bytes that are being copied beside the steps."""
        return sum(self._num_bytes.values())

    @property
    def keys(self) -> tuple[AdapterKey, ...]:
        """Adapters whose loads were not noted to have ended."""
        return tuple(self._num_bytes)

    def start(
        self, request: Request, requests: Iterable[Request], now: float
    ) -> tuple[AdapterKey, ...]:
        """Start the load that a request needs; return what is evicted for it. `requests` are all
        that are open on its adapter."""
        key = request.adapter
        assert key is not None
        num_bytes = request.submission.adapter_bytes
        evicted = self._residency.start_load(key, num_bytes)
        self._num_bytes[key] = num_bytes
        for other in requests:
            if other.adapter == key and other.status is Status.WAITING:
                other.clock.switch("load", now)
        return evicted

    def join(self, request: Request, now: float) -> None:
        """Note that a request which has just arrived waits for a load, if it does."""
        if request.adapter in self._num_bytes:
            request.clock.switch("load", now)

    def note_ended(self, requests: Iterable[Request], now: float) -> bool:
        """Forget loads that have ended; False if there were none. Once before each plan; `requests`
        are all that are open on `keys`."""
        if not self._num_bytes:
            return False
        state = self._residency.state
        ended = {key for key in self._num_bytes if state(key) is not State.LOADING}
        for key in ended:
            del self._num_bytes[key]
        if ended:
            for request in requests:
                if request.adapter in ended:
                    request.clock.switch(None, now)
        return bool(ended)
