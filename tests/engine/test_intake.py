"""Messages that name adapters come to the engine once those are known, and wait for no others."""

from collections.abc import Iterator
from queue import SimpleQueue
from threading import Event

import pytest
from tests.engine import build

from loraplex.adapters.sizes import AdapterSizes, StoredSizes
from loraplex.engine.intake import Intake
from loraplex.engine.mailbox import Mailbox, Message, Withdrawn
from loraplex.engine.protocol import Abort, Drop, Why
from loraplex.engine.residency_protocol import Pin, Pins, Warm

TIMEOUT_S = 30


class Reader:
    """Reads sizes, each when it is let."""

    def __init__(self) -> None:
        self.begun: SimpleQueue[str] = SimpleQueue()
        self.read: list[str] = []
        self._allowed: dict[str, Event] = {}

    def hold(self, digest: str) -> Event:
        return self._allowed.setdefault(digest, Event())

    def __call__(self, digest: str) -> AdapterSizes:
        self.read.append(digest)
        self.begun.put(digest)
        if digest in self._allowed:
            assert self._allowed[digest].wait(TIMEOUT_S)
        if digest == "broken":
            raise OSError("no such disk")
        return build.adapter_sizes(1)


class World:
    def __init__(self) -> None:
        self.reader = Reader()
        self.sizes = StoredSizes(self.reader)
        self.mailbox = Mailbox()
        self.intake = Intake(self.mailbox, self.sizes)

    def take(self, num: int) -> list[Message]:
        """As the engine takes them, so many."""
        taken: list[Message] = []
        while len(taken) < num:
            self.mailbox.wait(TIMEOUT_S)
            new = self.mailbox.take()
            assert new
            taken += new
        return taken


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.intake.close()


def test_a_request_comes_once_its_adapter_is_known_and_others_go_past_it(world: World) -> None:
    allowed = world.reader.hold("far")
    slow, why = build.submit("slow", adapter="far"), Why("slow")
    base, near = build.submit("base"), build.submit("near", adapter="near")
    world.intake.put(slow, why, base, near)
    assert world.take(2) == [base, near]
    allowed.set()
    assert world.take(2) == [slow, why]
    world.intake.put(slow)
    assert world.take(1) == [slow]
    assert sorted(world.reader.read) == ["far", "near"]


def test_an_adapter_is_read_once_for_all_that_wait_for_it(world: World) -> None:
    allowed = world.reader.hold("far")
    submits = [build.submit(str(number), adapter="far") for number in range(9)]
    world.intake.put(*submits)
    allowed.set()
    assert world.take(9) == submits
    assert world.reader.read == ["far"]


def test_a_request_that_is_aborted_while_it_is_held_never_comes(world: World) -> None:
    allowed = world.reader.hold("far")
    submits = [build.submit(name, adapter="far") for name in ("goes", "stays")]
    world.intake.put(*submits, Why("goes"), Abort("goes"))
    assert world.take(1) == [Withdrawn(submits[0])]
    allowed.set()
    assert world.take(1) == [submits[1]]
    world.intake.put(Abort("stays"))
    assert world.take(1) == [Abort("stays")]


def test_pins_come_once_all_are_known_and_no_request_waits_behind_them(world: World) -> None:
    allowed = world.reader.hold("pinned")
    pins = Pins(version=1, pinned=(Pin("t", "pinned"), Pin("t", "broken"), Pin("t", "last")))
    submit = build.submit("r", adapter="near")
    world.intake.put(pins)
    assert world.reader.begun.get(timeout=TIMEOUT_S) == "pinned"
    world.intake.put(submit)
    assert world.take(1) == [submit]
    allowed.set()
    assert world.take(1) == [pins]
    assert all(world.sizes.are_known(pin.adapter) for pin in pins.pinned)


def test_a_hint_for_what_was_dropped_while_it_was_held_never_comes(world: World) -> None:
    allowed = world.reader.hold("first")
    first, gone, kept = (Warm("t", name, 60.0) for name in ("first", "gone", "kept"))
    others = Warm("u", "first", 60.0)
    world.intake.put(first, others, gone, kept)
    assert world.reader.begun.get(timeout=TIMEOUT_S) == "first"
    drops = [Drop("t", "first"), Drop("t", "gone")]
    world.intake.put(*drops)
    assert world.take(2) == drops
    again = Warm("t", "gone", 30.0)
    world.intake.put(again)
    allowed.set()
    assert world.take(3) == [others, again, kept]
    assert world.reader.read == ["first", "gone", "kept"]


def test_what_cannot_be_read_is_told_to_the_engine_without_another_try(world: World) -> None:
    submit = build.submit("r", adapter="broken")
    for _ in range(2):
        world.intake.put(submit)
        assert world.take(1) == [submit]
        with pytest.raises(OSError, match="no such disk"):
            world.sizes.told("broken")
    assert world.reader.read == ["broken"]
    assert world.sizes.host_bytes("broken") is None
