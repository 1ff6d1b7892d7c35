"""Moves adapters from the store to the host and the device beside the steps, never inside one."""

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from loraplex.adapters.errors import AdapterMismatch
from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.plan import StepPlan
from loraplex.engine.transfers_port import AdapterSource, Arrival, LoadRoute, Progress

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Transfer:
    """One way of one adapter to the device."""

    key: AdapterKey
    started_s: float
    on_host: Any = None
    """What was read; before the start, if the host has it."""
    is_from_host: bool = False
    is_to_keep: bool = False
    """The host keeps what is read."""
    progress: LoadProgress = field(default_factory=LoadProgress)
    future: "Future[None] | None" = None
    weights: AdapterWeights | None = None
    error: Exception | None = None


class Transfers:
    """Loads on one thread, prefetches on another, so that no load waits behind a prefetch.

    `start`, `arrivals` and `progress` belong to the engine's thread and never wait for a load. What
    the host keeps is copied to the device without reading and verifying it again. A prefetch that
    is given up on its way goes to its end and is dropped, or taken again if its adapter is
    wanted before: one adapter is never read twice at a time. Until then it takes memory of the
    device that is accounted to others: of one adapter, since one is read at a time, and of a second
    while a step is planned, if that one is given up too just when the first has been read. So does
    what the host is to give up while it is copied.
    """

    def __init__(
        self,
        source: AdapterSource,
        on_arrival: Callable[[], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`on_arrival` is called from the loading thread; `clock` tells seconds."""
        self._source = source
        self._on_arrival = on_arrival
        self._clock = clock
        self._demanded = ThreadPoolExecutor(1, thread_name_prefix="adapter-load")
        self._spare = ThreadPoolExecutor(1, thread_name_prefix="adapter-prefetch")
        self._ended: SimpleQueue[_Transfer] = SimpleQueue()
        self._in_flight: dict[AdapterKey, _Transfer] = {}
        self._given_up: dict[AdapterKey, _Transfer] = {}
        """Transfers that go on although nobody wants them."""
        self._resident: dict[AdapterKey, AdapterWeights] = {}
        self._on_host: dict[AdapterKey, Any] = {}

    @property
    def resident(self) -> Mapping[AdapterKey, AdapterWeights]:
        """Adapters that a step may use."""
        return self._resident

    @property
    def on_host(self) -> Mapping[AdapterKey, Any]:
        """What the host keeps, as the source has read it."""
        return self._on_host

    def start(self, plan: StepPlan) -> None:
        """See `AdapterTransfers.start`."""
        for key in plan.evictions:
            if key in self._resident:
                del self._resident[key]
            else:
                self._give_up(self._in_flight.pop(key))
        for key in plan.host_evictions:
            self._on_host.pop(key, None)
        for key in plan.claims:
            transfer = self._in_flight[key]
            if transfer.future is not None and transfer.future.cancel():
                transfer.future = self._demanded.submit(self._run, transfer)
        for key in plan.loads:
            self._begin(key, self._demanded)
        for key in plan.prefetches:
            self._begin(key, self._spare)
        for key in plan.host_keeps:
            if key in self._in_flight:
                self._in_flight[key].is_to_keep = True

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
            arrived.append(self._end(transfer))

    def progress(self) -> Iterator[Progress]:
        """How far what is on its way has come."""
        for key, transfer in self._in_flight.items():
            progress = transfer.progress
            is_open = progress.early is not None
            yield Progress(key, progress.num_layers, progress.of_layers, is_open)

    @property
    def arriving(self) -> Mapping[AdapterKey, LoadProgress]:
        """Adapters on their way, and those that have come since the engine looked last."""
        return {key: transfer.progress for key, transfer in self._in_flight.items()}

    def close(self) -> None:
        """Wait for what is being read, drop the rest."""
        self._spare.shutdown(wait=False, cancel_futures=True)
        self._demanded.shutdown(cancel_futures=True)
        self._spare.shutdown()

    def _end(self, transfer: _Transfer) -> Arrival:
        key = transfer.key
        del self._in_flight[key]
        if transfer.weights is not None:
            self._resident[key] = transfer.weights
            if transfer.is_to_keep:
                self._on_host[key] = transfer.on_host
        seconds = self._clock() - transfer.started_s
        route: LoadRoute = "host" if transfer.is_from_host else "store"
        return Arrival(key, transfer.error, route, seconds)

    def _begin(self, key: AdapterKey, thread: ThreadPoolExecutor) -> None:
        transfer = self._given_up.pop(key, None)
        if transfer is None:
            on_host = self._on_host.get(key)
            transfer = _Transfer(key, self._clock(), on_host, is_from_host=on_host is not None)
            transfer.future = thread.submit(self._run, transfer)
        transfer.is_to_keep = False
        self._in_flight[key] = transfer

    def _give_up(self, transfer: _Transfer) -> None:
        if transfer.future is None or not transfer.future.cancel():
            self._given_up[transfer.key] = transfer

    def _run(self, transfer: _Transfer) -> None:
        try:
            if transfer.on_host is None:
                transfer.on_host = self._source.read(transfer.key.digest)
            transfer.weights = self._source.place(transfer.on_host, transfer.progress)
        except AdapterMismatch as error:
            _log.error("%s", error)
            transfer.error = error
        except Exception as error:  # noqa: BLE001  whatever it was, those who wait must hear of it
            _log.exception("adapter %s could not be loaded", transfer.key.digest)
            transfer.error = error
        transfer.progress.end()
        self._ended.put(transfer)
        self._on_arrival()
