"""Moves adapters from the store to the host and the device beside the steps, never inside one."""

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from loraplex.adapters.errors import AdapterMismatch
from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.spec import AdapterKey
from loraplex.adapters.weights import AdapterWeights
from loraplex.engine.copy_link import CopyLink, CopyStopped, Passage
from loraplex.engine.plan import StepPlan
from loraplex.engine.transfers_port import AdapterSource, Arrival, LoadRoute, Progress

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Transfer:
    """One way of one adapter to the device."""

    key: AdapterKey
    started_s: float
    passage: Passage
    progress: LoadProgress
    on_host: Any
    """What was read; before the start, if the host has it."""
    is_from_host: bool
    is_to_keep: bool = False
    """The host keeps what is read."""
    future: "Future[None] | None" = None
    told: Progress | None = None
    """What the engine has seen of it last."""
    weights: AdapterWeights | None = None
    error: Exception | None = None


class Transfers:
    """Loads on one thread, prefetches on another, so that no load waits behind a prefetch; both
    copy over one link, which lets loads go first.

    `start`, `arrivals` and `progress` belong to the engine's thread and never wait for a load. What
    the host keeps is copied to the device without reading and verifying it again. A prefetch that
    is given up on its way is read to its end, is not copied any further and is dropped; or it is
    taken again if its adapter is wanted before: one adapter is never read twice at a time. What
    of its memory was taken until then is accounted to others: of one adapter, since one is copied
    at a time. So is what the host is to give up while it is copied.
    """

    def __init__(
        self,
        source: AdapterSource,
        on_arrival: Callable[[], None],
        clock: Callable[[], float] = monotonic,
        link: CopyLink | None = None,
    ) -> None:
        """`on_arrival` is called when an adapter has come and when a load has become usable, or
        more of it: from the loading thread, or from `start` if that was before it was claimed;
        `clock` tells seconds."""
        self.link = link or CopyLink()
        self._source = source
        self._on_arrival = on_arrival
        self._clock = clock
        self._demanded = ThreadPoolExecutor(1, thread_name_prefix="adapter-load")
        self._spare = ThreadPoolExecutor(1, thread_name_prefix="adapter-prefetch")
        self._ended: SimpleQueue[_Transfer] = SimpleQueue()
        self._in_flight: dict[AdapterKey, _Transfer] = {}
        self._arriving: dict[AdapterKey, LoadProgress] = {}
        """Of these."""
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
                self._give_up(key)
        for key in plan.host_evictions:
            self._on_host.pop(key, None)
        self.link.grant(plan.copy_bytes)
        for key in plan.claims:
            transfer = self._in_flight[key]
            self.link.want(transfer.passage, is_prefetch=False)
            if transfer.future is not None and transfer.future.cancel():
                transfer.future = self._demanded.submit(self._run, transfer)
            self._tell_untold(transfer)
        for key in plan.loads:
            self._begin(key, is_prefetch=False)
        for key in plan.prefetches:
            self._begin(key, is_prefetch=True)
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
            if self._in_flight.get(transfer.key) is transfer:
                arrived.append(self._end(transfer))
            elif self._given_up.get(transfer.key) is transfer:
                del self._given_up[transfer.key]

    def progress(self) -> Iterator[Progress]:
        """How far what is on its way has come."""
        for transfer in self._in_flight.values():
            transfer.told = _progress(transfer)
            yield transfer.told

    @property
    def arriving(self) -> Mapping[AdapterKey, LoadProgress]:
        """Adapters on their way, and those that have come since the engine looked last. Always the
        same mapping, which changes with `start` and `arrivals`."""
        return self._arriving

    def close(self) -> None:
        """Wait for what is being read, and for a layer that is being copied; drop the rest."""
        self.link.close()
        self._spare.shutdown(wait=False, cancel_futures=True)
        self._demanded.shutdown(cancel_futures=True)
        self._spare.shutdown()

    def _end(self, transfer: _Transfer) -> Arrival:
        key = transfer.key
        del self._in_flight[key], self._arriving[key]
        if transfer.weights is not None:
            self._resident[key] = transfer.weights
            if transfer.is_to_keep:
                self._on_host[key] = transfer.on_host
        seconds = self._clock() - transfer.started_s
        route: LoadRoute = "host" if transfer.is_from_host else "store"
        passage = transfer.passage
        return Arrival(key, transfer.error, route, seconds, passage.num_bytes, passage.copy_s)

    def _begin(self, key: AdapterKey, *, is_prefetch: bool) -> None:
        before = self._given_up.pop(key, None)
        if before is not None and self.link.want(before.passage, is_prefetch=is_prefetch):
            transfer = before
        else:
            transfer = self._new(key, before, is_prefetch=is_prefetch)
            thread = self._spare if is_prefetch else self._demanded
            transfer.future = thread.submit(self._run, transfer)
        transfer.is_to_keep = False
        self._in_flight[key] = transfer
        self._arriving[key] = transfer.progress

    def _new(self, key: AdapterKey, stopped: _Transfer | None, *, is_prefetch: bool) -> _Transfer:
        """One from the beginning; what one that was stopped in its copy has read is taken over."""
        on_host = self._on_host.get(key)
        is_from_host = on_host is not None
        if stopped is not None and not is_from_host:
            on_host, is_from_host = stopped.on_host, stopped.is_from_host
        passage = self.link.passage(is_prefetch=is_prefetch)
        progress = LoadProgress(partial(self.link.take, passage), partial(self._tell, passage))
        return _Transfer(key, self._clock(), passage, progress, on_host, is_from_host)

    def _tell(self, passage: Passage) -> None:
        """Of what nobody waits for, nobody wants to know each layer."""
        if not passage.is_prefetch:
            self._on_arrival()

    def _tell_untold(self, transfer: _Transfer) -> None:
        """What came of it since the engine looked, while nobody waited for it, told nobody."""
        if transfer.progress.early is not None and transfer.told != _progress(transfer):
            self._tell(transfer.passage)

    def _give_up(self, key: AdapterKey) -> None:
        transfer = self._in_flight.pop(key)
        del self._arriving[key]
        if transfer.future is None or not transfer.future.cancel():
            self.link.give_up(transfer.passage)
            self._given_up[key] = transfer

    def _run(self, transfer: _Transfer) -> None:
        try:
            self._move(transfer)
        except Exception as error:  # noqa: BLE001  whatever it was, those who wait must hear of it
            _log_failure(transfer.key, error)
            # What led to it holds the memory that the copy was to fill.
            transfer.error = error.with_traceback(None)
        transfer.progress.end()
        self._ended.put(transfer)
        self._on_arrival()

    def _move(self, transfer: _Transfer) -> None:
        if transfer.on_host is None:
            transfer.on_host = self._source.read(transfer.key.digest)
        self.link.enter(transfer.passage)
        try:
            transfer.weights = self._source.place(transfer.on_host, transfer.progress)
        finally:
            self.link.leave(transfer.passage)


def _progress(transfer: _Transfer) -> Progress:
    progress = transfer.progress
    is_open = progress.early is not None
    return Progress(transfer.key, progress.num_layers, progress.of_layers, is_open)


def _log_failure(key: AdapterKey, error: Exception) -> None:
    if isinstance(error, AdapterMismatch):
        _log.error("%s", error)
    elif not isinstance(error, CopyStopped):
        _log.error("adapter %s could not be loaded", key.digest, exc_info=error)
