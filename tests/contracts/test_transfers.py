"""What whoever copies adapters must do: the engine's threads, and the simulator's link."""

from collections.abc import Iterator
from threading import Event, Semaphore

import pytest
from tests.engine import build

from loraplex.adapters.load_progress import LoadProgress
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.copy_link import CopyStopped
from loraplex.engine.plan import StepPlan
from loraplex.engine.simulation.copies import CopyLink
from loraplex.engine.transfers import Transfers
from loraplex.engine.transfers_port import AdapterTransfers, Arrival, Progress


def plan(copy_bytes: int | None = None, **orders: str) -> StepPlan:
    keys = {kind: tuple(AdapterKey("t", name) for name in names) for kind, names in orders.items()}
    return StepPlan(1, (), **({"loads": (), "evictions": ()} | keys), copy_bytes=copy_bytes)


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


class InLayers(build.Source):
    """Adapters of four layers of ten bytes, of which each needs a grant of its own."""

    NUM_LAYERS = 4

    def __init__(self) -> None:
        super().__init__(self._read)
        self.reads: list[str] = []
        self.reading, self.may_read = Semaphore(0), Semaphore(99)
        self.copied: list[str] = []
        self.fails_at: int | None = None
        self.woken = Semaphore(0)
        self.transfers = Transfers(self, self.woken.release)

    def _read(self, digest: str) -> str:
        self.reads.append(digest)
        self.reading.release()
        assert self.may_read.acquire(timeout=10)
        return digest

    def place(self, on_host: str, progress: LoadProgress) -> str:
        progress.open(self.NUM_LAYERS, early=self)
        for number in range(self.NUM_LAYERS):
            progress.pace(10)
            if number == self.fails_at:
                raise OSError("the bus is gone")
            self.copied.append(on_host)
            progress.add_layer()
        return on_host

    def start(self, **orders: str) -> None:
        """With nothing that may be copied yet."""
        self.transfers.start(plan(0, **orders))

    def copy_layer(self, digest: str) -> None:
        """Let one more be copied, and wait until it is there."""
        progress = self.transfers.arriving[AdapterKey("t", digest)]
        before = progress.num_layers
        self.transfers.start(plan(10))
        assert progress.wait_for(before + 1, 10)

    def arrive(self, count: int = 1) -> list[Arrival]:
        """Let all be copied, and wait until so many have arrived."""
        self.transfers.start(plan())
        arrivals = self.transfers.arrivals()
        while len(arrivals) < count:
            assert self.woken.acquire(timeout=10)
            arrivals += self.transfers.arrivals()
        return arrivals


@pytest.fixture
def layers() -> Iterator[InLayers]:
    made = InLayers()
    yield made
    made.may_read.release(99)
    made.transfers.close()


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


def test_layers_of_a_load_are_told_one_by_one_and_wake_who_waits(layers: InLayers) -> None:
    layers.start(loads="a")
    assert layers.woken.acquire(timeout=10), "its memory is there"
    (progress,) = layers.transfers.arriving.values()
    assert (progress.num_layers, progress.of_layers, progress.early) == (0, 4, layers)
    for number in (1, 2, 3, 4):
        layers.copy_layer("a")
        assert layers.woken.acquire(timeout=10)
        assert progress.num_layers == number
    (arrival,) = layers.arrive()
    assert (arrival.error, arrival.num_bytes) == (None, 40)
    assert 0 < arrival.copy_s <= arrival.seconds
    assert not layers.transfers.arriving


def test_what_is_on_its_way_is_always_told_by_the_same_mapping(layers: InLayers) -> None:
    arriving = layers.transfers.arriving
    layers.start(loads="a", prefetches="b")
    assert layers.transfers.arriving is arriving
    assert {key.digest for key in arriving} == {"a", "b"}


def test_nobody_is_woken_for_the_layers_of_a_prefetch(layers: InLayers) -> None:
    layers.transfers.start(plan(prefetches="a"))
    assert layers.woken.acquire(timeout=10)
    assert names(layers.transfers.arrivals()) == "a", "the only one is for its end"


def test_who_claims_a_prefetch_is_woken_for_what_came_since_the_engine_looked(
    layers: InLayers,
) -> None:
    layers.start(prefetches="a")
    layers.copy_layer("a")
    layers.start(claims="a")
    assert layers.woken.acquire(blocking=False), "a layer came before the claim"


def test_a_claim_wakes_nobody_for_what_the_engine_has_seen(layers: InLayers) -> None:
    layers.start(prefetches="a")
    layers.copy_layer("a")
    assert [told.num_layers for told in layers.transfers.progress()] == [1]
    layers.start(claims="a")
    assert not layers.woken.acquire(blocking=False)


def test_a_copy_that_fails_halfway_arrives_with_the_error_and_wakes_who_waits_for_layers(
    layers: InLayers,
) -> None:
    layers.fails_at = 2
    layers.start(loads="a")
    (progress,) = layers.transfers.arriving.values()
    (arrival,) = layers.arrive()
    assert isinstance(arrival.error, OSError)
    assert arrival.error.__traceback__ is None, "it would hold the memory"
    assert not progress.wait_for(3, 10)
    assert progress.num_layers == 2
    assert not layers.transfers.arriving
    assert not layers.transfers.resident
    layers.fails_at = None
    layers.start(loads="a")
    assert names(layers.arrive()) == "a"


def test_a_prefetch_gives_way_to_a_load_between_its_layers(layers: InLayers) -> None:
    layers.start(prefetches="a")
    layers.copy_layer("a")
    layers.start(loads="b")
    assert layers.woken.acquire(timeout=10), "b is on its way"
    assert set(names(layers.arrive(2))) == {"a", "b"}
    assert "".join(layers.copied) == "abbbbaaa"


def test_a_claimed_prefetch_no_longer_gives_way_to_loads_after_it(layers: InLayers) -> None:
    layers.start(prefetches="a")
    layers.copy_layer("a")
    layers.start(claims="a", loads="b")
    assert layers.woken.acquire(timeout=10), "b is on its way"
    assert set(names(layers.arrive(2))) == {"a", "b"}
    assert "".join(layers.copied) == "aaaabbbb"
    assert layers.transfers.link.copied_bytes("prefetch") == 10


def test_a_prefetch_that_is_given_up_is_copied_no_further(layers: InLayers) -> None:
    layers.start(prefetches="a")
    layers.copy_layer("a")
    layers.start(evictions="a", prefetches="b")
    assert not layers.transfers.arriving.keys() & {AdapterKey("t", "a")}
    assert names(layers.arrive()) == "b"
    assert "".join(layers.copied) == "abbbb"


def test_one_that_is_given_up_while_it_is_read_is_not_copied_at_all(layers: InLayers) -> None:
    while layers.may_read.acquire(blocking=False):
        pass
    layers.start(prefetches="a")
    assert layers.reading.acquire(timeout=10)
    layers.start(evictions="a")
    layers.may_read.release()
    assert layers.woken.acquire(timeout=10)
    assert layers.transfers.arrivals() == []
    assert layers.copied == []


def test_one_that_was_stopped_and_is_wanted_again_is_copied_anew_and_not_read_again(
    layers: InLayers,
) -> None:
    layers.start(prefetches="a")
    layers.copy_layer("a")
    layers.start(evictions="a")
    assert layers.woken.acquire(timeout=10), "it has been stopped"
    layers.start(loads="a", host_keeps="a")
    (arrival,) = layers.arrive()
    assert (arrival.error, arrival.num_bytes, arrival.route) == (None, 40, "store")
    assert layers.reads == ["a"]
    assert "".join(layers.copied) == "aaaaa"
    assert AdapterKey("t", "a") in layers.transfers.on_host


def test_the_end_waits_for_no_grant(layers: InLayers) -> None:
    layers.start(loads="a", prefetches="b")
    layers.copy_layer("a")
    layers.transfers.close()
    errors = [arrival.error for arrival in layers.transfers.arrivals()]
    assert errors
    assert all(isinstance(error, CopyStopped) for error in errors)
