"""Moves adapters from the store to the device beside the steps, never inside one."""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from loraplex.adapters.errors import AdapterMismatch
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.plan import StepPlan
from loraplex.engine.transfers_port import Arrival

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Transfer:
    """One read of one adapter."""

    key: AdapterKey
    future: "Future[None] | None" = None
    weights: AdapterWeights | None = None
    error: Exception | None = None


class Transfers:
    """Loads on one thread, prefetches on another, so that no load waits behind a prefetch.

    `start` and `arrivals` belong to the engine's thread and never wait for a load. A prefetch that
    is given up while it is read is read to its end and dropped, or taken again if its adapter is
    wanted before: one adapter is never read twice at a time. Until then it takes memory of the
    device that is accounted to others: of one adapter, since one is read at a time, and of a second
    while a step is planned, if that one is given up too just when the first has been read.
    """

    def __init__(
        self, load: Callable[[str], AdapterWeights], on_arrival: Callable[[], None]
    ) -> None:
        """`load` reads one adapter by digest; `on_arrival` is called from the loading thread."""
        self._load = load
        self._on_arrival = on_arrival
        self._demanded = ThreadPoolExecutor(1, thread_name_prefix="adapter-load")
        self._spare = ThreadPoolExecutor(1, thread_name_prefix="adapter-prefetch")
        self._ended: SimpleQueue[_Transfer] = SimpleQueue()
        self._in_flight: dict[AdapterKey, _Transfer] = {}
        self._given_up: dict[AdapterKey, _Transfer] = {}
        """Transfers that go on although nobody wants them."""
        self._resident: dict[AdapterKey, AdapterWeights] = {}

    @property
    def resident(self) -> Mapping[AdapterKey, AdapterWeights]:
        """Adapters that a step may use."""
        return self._resident

    def start(self, plan: StepPlan) -> None:
        """See `AdapterTransfers.start`."""
        for key in plan.evictions:
            if key in self._resident:
                del self._resident[key]
            else:
                self._give_up(self._in_flight.pop(key))
        for key in plan.claims:
            transfer = self._in_flight[key]
            if transfer.future is not None and transfer.future.cancel():
                transfer.future = self._demanded.submit(self._run, transfer)
        for key in plan.loads:
            self._begin(key, self._demanded)
        for key in plan.prefetches:
            self._begin(key, self._spare)

    def arrivals(self) -> list[Arrival]:
        """See `AdapterTransfers.arrivals`."""
        arrived: list[Arrival] = []
        while True:
            try:
                transfer = self._ended.get_nowait()
            except Empty:
                return arrived
            if self._given_up.get(transfer.key) is transfer:
                del self._given_up[transfer.key]
                continue
            del self._in_flight[transfer.key]
            if transfer.weights is not None:
                self._resident[transfer.key] = transfer.weights
            arrived.append(Arrival(transfer.key, transfer.error))

    def close(self) -> None:
        """Wait for what is being read, drop the rest."""
        self._spare.shutdown(wait=False, cancel_futures=True)
        self._demanded.shutdown(cancel_futures=True)
        self._spare.shutdown()

    def _begin(self, key: AdapterKey, thread: ThreadPoolExecutor) -> None:
        transfer = self._given_up.pop(key, None)
        if transfer is None:
            transfer = _Transfer(key)
            transfer.future = thread.submit(self._run, transfer)
        self._in_flight[key] = transfer

    def _give_up(self, transfer: _Transfer) -> None:
        if transfer.future is None or not transfer.future.cancel():
            self._given_up[transfer.key] = transfer

    def _run(self, transfer: _Transfer) -> None:
        try:
            transfer.weights = self._load(transfer.key.digest)
        except AdapterMismatch as error:
            _log.error("%s", error)
            transfer.error = error
        except Exception as error:  # noqa: BLE001  whatever it was, those who wait must hear of it
            _log.exception("adapter %s could not be loaded", transfer.key.digest)
            transfer.error = error
        self._ended.put(transfer)
        self._on_arrival()
