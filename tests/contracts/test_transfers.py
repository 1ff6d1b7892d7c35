"""What whoever copies adapters must do: the engine's threads, and the simulator's link."""

from collections.abc import Iterator
from threading import Event, Semaphore

import pytest
from tests.engine import build

from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.plan import StepPlan
from loraplex.engine.simulation.copies import CopyLink
from loraplex.engine.transfers import Transfers
from loraplex.engine.transfers_port import AdapterTransfers, Arrival, Progress


def plan(**orders: str) -> StepPlan:
    keys = {kind: tuple(AdapterKey("t", name) for name in names) for kind, names in orders.items()}
    return StepPlan(1, (), **({"loads": (), "evictions": ()} | keys))


class OnThreads:
    """The engine's; a read ends when the test lets it."""

    def __init__(self) -> None:
        self.reads: list[str] = []
        self._begun: dict[str, Event] = {name: Event() for name in "abc"}
        self._may_end: dict[str, Semaphore] = {name: Semaphore(0) for name in "abc"}
        self.woken = Semaphore(0)
        self.transfers = Transfers(build.Source(self._read), self.woken.release)

    def _read(self, digest: str) -> object:
        self.reads.append(digest)
        self._begun[digest].set()
        self._may_end[digest].acquire()
        return object()

    def begins(self, digest: str) -> None:
        assert self._begun[digest].wait(10)

    def end(self, digest: str) -> None:
        self._may_end[digest].release()
        assert self.woken.acquire(timeout=10)

    def close(self) -> None:
        for semaphore in self._may_end.values():
            semaphore.release(9)
        self.transfers.close()


class OnALink:
    """The simulator's; whatever is first ends when time has passed."""

    def __init__(self) -> None:
        self._now = 0.0
        self.transfers = CopyLink(1.0, lambda _: 1, lambda: self._now)

    def begins(self, digest: str) -> None:
        """By itself."""

    def end(self, digest: str) -> None:
        self._now = max(self._now, self.transfers.next_arrival_s)

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture(params=[OnThreads, OnALink])
def copies(request: pytest.FixtureRequest) -> Iterator[OnThreads | OnALink]:
    made = request.param()
    yield made
    made.close()


def names(arrivals: list[Arrival]) -> str:
    assert all(arrival.error is None for arrival in arrivals)
    return "".join(arrival.key.digest for arrival in arrivals)


def test_what_was_started_arrives_once(copies: OnThreads | OnALink) -> None:
    transfers: AdapterTransfers = copies.transfers
    transfers.start(plan(loads="a", prefetches="b"))
    assert transfers.arrivals() == []
    copies.end("a")
    assert names(transfers.arrivals()) == "a"
    copies.end("b")
    assert names(transfers.arrivals()) == "b"
    assert transfers.arrivals() == []


def test_a_load_does_not_wait_for_a_prefetch_that_was_started_before(
    copies: OnThreads | OnALink,
) -> None:
    copies.transfers.start(plan(prefetches="ab"))
    copies.begins("a")
    copies.transfers.start(plan(loads="c"))
    copies.end("c")
    assert names(copies.transfers.arrivals()) == "c"


def test_a_claimed_prefetch_does_not_wait_for_another_that_was_started_before(
    copies: OnThreads | OnALink,
) -> None:
    copies.transfers.start(plan(prefetches="ab"))
    copies.begins("a")
    copies.transfers.start(plan(claims="b"))
    copies.end("b")
    assert names(copies.transfers.arrivals()) == "b"


def test_a_prefetch_that_was_given_up_does_not_arrive(copies: OnThreads | OnALink) -> None:
    copies.transfers.start(plan(prefetches="a"))
    copies.begins("a")
    copies.transfers.start(plan(evictions="a", loads="b"))
    if isinstance(copies, OnThreads):
        copies.end("a")
    copies.end("b")
    assert names(copies.transfers.arrivals()) == "b"


def test_what_was_given_up_and_is_wanted_again_arrives_once(copies: OnThreads | OnALink) -> None:
    copies.transfers.start(plan(prefetches="a"))
    copies.begins("a")
    copies.transfers.start(plan(evictions="a"))
    copies.transfers.start(plan(loads="a"))
    copies.end("a")
    assert names(copies.transfers.arrivals()) == "a"
    if isinstance(copies, OnThreads):
        assert copies.reads == ["a"], "one adapter was read twice at a time"


def test_an_evicted_adapter_is_no_longer_for_steps_to_use() -> None:
    copies = OnThreads()
    key = AdapterKey("t", "a")
    copies.transfers.start(plan(loads="a"))
    copies.end("a")
    copies.transfers.arrivals()
    assert key in copies.transfers.resident
    copies.transfers.start(plan(evictions="a"))
    assert key not in copies.transfers.resident
    copies.close()


def test_what_cannot_be_read_arrives_with_the_error() -> None:
    def fail(_: str) -> object:
        raise OSError("gone")

    woken = Event()
    transfers = Transfers(build.Source(fail), woken.set)
    transfers.start(plan(prefetches="a"))
    assert woken.wait(10)
    (arrival,) = transfers.arrivals()
    assert isinstance(arrival.error, OSError)
    transfers.close()


def test_what_the_host_keeps_is_not_read_again_until_it_is_given_up() -> None:
    copies = OnThreads()
    transfers = copies.transfers

    def load(**orders: str) -> Arrival:
        transfers.start(plan(loads="a", **orders))
        if "a" not in {key.digest for key in transfers.on_host}:
            copies.end("a")
        else:
            assert copies.woken.acquire(timeout=10)
        (arrival,) = transfers.arrivals()
        return arrival

    assert load(host_keeps="a").route == "store"
    assert load(evictions="a").route == "host"
    assert copies.reads == ["a"]
    assert load(evictions="a", host_evictions="a").route == "store"
    assert copies.reads == ["a", "a"]
    assert not transfers.on_host, "nobody asked to keep it"
    copies.close()


def test_how_many_layers_are_there_is_told_while_the_rest_is_copied() -> None:
    halfway, may_end, woken = Event(), Event(), Event()

    class InTwoHalves(build.Source):
        def place(self, on_host: object, progress: LoadProgress) -> object:
            progress.open(2, None)
            progress.add_layer()
            halfway.set()
            assert may_end.wait(10)
            progress.add_layer()
            return on_host

    transfers = Transfers(InTwoHalves(lambda _: object()), woken.set)
    transfers.start(plan(loads="a"))
    assert halfway.wait(10)
    assert list(transfers.progress()) == [Progress(AdapterKey("t", "a"), 1, 2)]
    may_end.set()
    assert woken.wait(10)
    assert names(transfers.arrivals()) == "a"
    assert list(transfers.progress()) == []
    transfers.close()
