"""Moves adapters from the store to the device beside the steps, never inside one."""

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from loraplex.adapters.errors import AdapterMismatch
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Arrival:
    """The end of one transfer: weights, or why there are none."""

    key: AdapterKey
    weights: AdapterWeights | None
    error: Exception | None = None


class Transfers:
    """Starts loads on a thread of its own and hands over what has arrived.

    `start` and `arrivals` belong to the engine's thread and never wait for a load.
    """

    def __init__(
        self, load: Callable[[str], AdapterWeights], on_arrival: Callable[[], None]
    ) -> None:
        """`load` reads one adapter by digest; `on_arrival` is called from the loading thread."""
        self._load = load
        self._on_arrival = on_arrival
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="adapter-load")
        self._arrived: SimpleQueue[Arrival] = SimpleQueue()
        self._resident: dict[AdapterKey, AdapterWeights] = {}

    @property
    def resident(self) -> Mapping[AdapterKey, AdapterWeights]:
        """Adapters that a step may use."""
        return self._resident

    def start(self, evictions: Iterable[AdapterKey], loads: Iterable[AdapterKey]) -> None:
        """Give up the evicted adapters' memory, then start the loads."""
        for key in evictions:
            del self._resident[key]
        for key in loads:
            self._thread.submit(self._run, key)

    def arrivals(self) -> list[Arrival]:
        """All transfers that ended since the last call."""
        arrived: list[Arrival] = []
        while True:
            try:
                arrival = self._arrived.get_nowait()
            except Empty:
                return arrived
            if arrival.weights is not None:
                self._resident[arrival.key] = arrival.weights
            arrived.append(arrival)

    def close(self) -> None:
        """Wait for the load in flight, drop the others."""
        self._thread.shutdown(cancel_futures=True)

    def _run(self, key: AdapterKey) -> None:
        try:
            arrival = Arrival(key, self._load(key.digest))
        except AdapterMismatch as error:
            _log.error("%s", error)
            arrival = Arrival(key, None, error)
        except Exception as error:  # noqa: BLE001  whatever it was, those who wait must hear of it
            _log.exception("adapter %s could not be loaded", key.digest)
            arrival = Arrival(key, None, error)
        self._arrived.put(arrival)
        self._on_arrival()
