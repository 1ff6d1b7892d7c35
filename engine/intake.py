"""The way into the mailbox for messages that name adapters: what the engine must know of those is
read first, on threads that may wait for a disk or a network, as the engine's must not."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Protocol

from loraplex.adapters.sizes import AdapterSizes
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.mailbox import Mailbox, Message, Withdrawn
from loraplex.engine.protocol import Abort, Drop, Submit, Why
from loraplex.engine.residency_protocol import Pins, Warm

NUM_THREADS = 4
"""Adapters of requests whose sizes are read at a time."""


class Sizes(Protocol):
    """What must be known of adapters; `adapters.sizes.StoredSizes`."""

    def are_known(self, digest: str) -> bool:
        """True if `of` has nothing to read."""

    def of(self, digest: str) -> AdapterSizes:
        """May take long, and raise; when asked again soon, the same without reading."""


class Intake:
    """Passes messages on, in order for each request. One whose adapter is unknown is held until its
    sizes are known, or why they are not, which the engine then tells; meanwhile others go past.

    Each adapter is read once, whoever asks. Pins name many adapters, and hints may be many: one
    thread reads those, so that no request waits behind them. Safe from any thread.
    """

    def __init__(self, mailbox: Mailbox, sizes: Sizes) -> None:
        self._mailbox = mailbox
        self._sizes = sizes
        self._of_requests = ThreadPoolExecutor(NUM_THREADS, "adapter-sizes")
        self._of_pins = ThreadPoolExecutor(1, "pin-sizes")
        self._lock = Lock()
        self._held: dict[str, list[Message]] = {}
        """By request: its `Submit`, and what was asked about it since."""
        self._readers: dict[str, list[str]] = {}
        """Requests, by the digest that is being read for them."""
        self._hints: dict[AdapterKey, list[Warm]] = {}
        """Hints whose adapter is being read, until it is dropped."""

    def put(self, *messages: Message) -> None:
        """Add messages."""
        with self._lock:
            for message in messages:
                self._put(message)

    def close(self) -> None:
        """Wait for what is being read; what is held is dropped."""
        for threads in (self._of_requests, self._of_pins):
            threads.shutdown(wait=False, cancel_futures=True)
        self._of_requests.shutdown()
        self._of_pins.shutdown()

    def _put(self, message: Message) -> None:
        match message:
            case Submit(adapter=str(digest)) if not self._sizes.are_known(digest):
                self._hold(message, digest)
            case Abort(request_id) if request_id in self._held:
                submit = self._held.pop(request_id)[0]
                assert isinstance(submit, Submit)
                self._mailbox.put(Withdrawn(submit))
            case Why(request_id) if request_id in self._held:
                self._held[request_id].append(message)
            case Pins(pinned=pinned) if not all(
                self._sizes.are_known(pin.adapter) for pin in pinned
            ):
                self._of_pins.submit(self._read_pinned, message)
            case Warm(tenant, digest) if not self._sizes.are_known(digest):
                self._hints.setdefault(AdapterKey(tenant, digest), []).append(message)
                self._of_pins.submit(self._read_hinted, AdapterKey(tenant, digest))
            case Drop(tenant, digest):
                self._hints.pop(AdapterKey(tenant, digest), None)  # or it would be fetched again
                self._mailbox.put(message)
            case _:
                self._mailbox.put(message)

    def _hold(self, submit: Submit, digest: str) -> None:
        self._held[submit.request_id] = [submit]
        if digest in self._readers:
            self._readers[digest].append(submit.request_id)
            return
        self._readers[digest] = [submit.request_id]
        self._of_requests.submit(self._read, digest)

    def _read(self, digest: str) -> None:
        self._learn([digest])
        with self._lock:
            for request_id in self._readers.pop(digest):
                self._mailbox.put(*self._held.pop(request_id, ()))

    def _read_pinned(self, pins: Pins) -> None:
        self._learn(pin.adapter for pin in pins.pinned)
        self._mailbox.put(pins)

    def _read_hinted(self, key: AdapterKey) -> None:
        with self._lock:
            is_wanted = key in self._hints
        if is_wanted:
            self._learn([key.digest])
        with self._lock:
            self._mailbox.put(*self._hints.pop(key, ()))

    def _learn(self, digests: Iterable[str]) -> None:
        for digest in digests:
            with suppress(Exception):  # the engine is told the same
                self._sizes.of(digest)
