"""The link to the device: who may copy, how much, how fast."""

from collections.abc import Callable, Iterator
from threading import Condition, Semaphore, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loraplex.engine.copy_link import CopyLink, CopyStopped, Passage


class Time:
    """Seconds that pass while somebody waits for them; who waits for a grant gets the next."""

    def __init__(self, grants: Iterator[int | None] | None = None) -> None:
        self.now = 0.0
        self.granted = 0
        self.num_grants = 0
        self._grants = grants or iter(())
        self.link: CopyLink

    def wait(self, _: Condition, timeout_s: float | None) -> None:
        if timeout_s is None:
            self.now += 5.0
            self.grant(next(self._grants))
        else:
            self.now += timeout_s

    def grant(self, num_bytes: int | None) -> None:
        self.link.grant(num_bytes)
        self.granted += num_bytes or 0
        self.num_grants += 1


def make(limit: float | None = None, grants: Iterator[int | None] | None = None) -> Time:
    """A link in such a time."""
    time = Time(grants)
    time.link = CopyLink(limit, lambda: time.now, time.wait)
    return time


def entered(link: CopyLink, *, is_prefetch: bool = False) -> Passage:
    passage = link.passage(is_prefetch=is_prefetch)
    link.enter(passage)
    return passage


class Copier:
    """A thread that copies a layer each time it is told to, as far as the link lets it."""

    def __init__(self, link: CopyLink, passage: Passage) -> None:
        self._link, self._passage = link, passage
        self._asked, self.done = Semaphore(0), Semaphore(0)
        self.error: Exception | None = None
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._asked.acquire() and self.error is None:
            try:
                self._link.take(self._passage, 1)
            except CopyStopped as error:
                self.error = error
            self.done.release()

    def ask(self) -> None:
        self._asked.release()

    def got(self) -> bool:
        return self.done.acquire(timeout=10)


@pytest.fixture
def waiting() -> Semaphore:
    """One more each time a copy begins to wait, or looks again and goes on waiting."""
    return Semaphore(0)


@pytest.fixture
def link(waiting: Semaphore) -> Iterator[CopyLink]:
    def wait(condition: Condition, timeout_s: float | None) -> None:
        waiting.release()
        condition.wait(timeout_s)

    made = CopyLink(wait=wait)
    yield made
    made.close()


def waits(waiting: Semaphore) -> bool:
    return waiting.acquire(timeout=10)


@given(
    pieces=st.lists(st.integers(1, 200_000), min_size=1, max_size=60),
    copy_s=st.floats(0, 0.0005),
    begin_s=st.floats(0, 3),
)
def test_a_throttled_copy_takes_the_time_of_its_bytes_however_small_its_layers_are(
    pieces: list[int], copy_s: float, begin_s: float
) -> None:
    time = make(limit=1e8)
    time.now = begin_s
    passage = entered(time.link)
    for num_bytes in pieces:
        time.link.take(passage, num_bytes)
        time.now += copy_s
    time.link.leave(passage)
    took_s, least_s = time.now - begin_s, sum(pieces) / 1e8
    assert least_s <= took_s + 1e-9
    longest_s = sum(max(size / 1e8, copy_s) for size in pieces) + copy_s
    assert took_s <= longest_s + 1e-9
    assert passage.copy_s == pytest.approx(took_s)


def test_what_copies_take_themselves_does_not_add_to_the_throttle_s_time() -> None:
    time = make(limit=1e8)
    passage = entered(time.link)
    for _ in range(100):
        time.link.take(passage, 100_000)
        time.now += 0.0002
    assert time.now == pytest.approx(0.1, rel=0.005)


def test_a_link_that_was_idle_owes_nobody_the_time() -> None:
    time = make(limit=1000)
    for passage in (entered(time.link), entered(time.link)):
        time.now += 60
        before = time.now
        time.link.take(passage, 500)
        time.link.leave(passage)
        assert time.now == before + 0.5


def test_two_copies_share_the_throttle() -> None:
    time = make(limit=1000)
    load, prefetch = entered(time.link), entered(time.link, is_prefetch=True)
    time.link.take(load, 1000)
    time.link.leave(load)
    time.link.take(prefetch, 1000)
    assert time.now == pytest.approx(2.0)


@given(
    pieces=st.lists(st.integers(0, 50), min_size=1, max_size=40),
    grants=st.lists(st.integers(0, 40), max_size=20),
)
def test_what_is_copied_is_never_more_than_was_granted_and_one_layer(
    pieces: list[int], grants: list[int]
) -> None:
    rest = iter(lambda: 7, None)  # so that all ends
    time = make(grants=iter([*grants, *[next(rest) for _ in range(2000)]]))
    time.grant(0)
    passage = entered(time.link)
    copied = 0
    for num_bytes in pieces:
        time.link.take(passage, num_bytes)
        assert copied < time.granted, "nothing was left"
        copied += num_bytes
    time.link.leave(passage)
    assert passage.num_bytes == copied == time.link.copied_bytes("load")


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), max_size=30))
def test_what_a_grant_leaves_is_gone_and_what_is_taken_too_much_is_missing_later(
    steps: list[tuple[int, int]],
) -> None:
    """Against a model: steps of so many bytes, in which so many layers of 10 are asked for."""

    def stop(*_: object) -> None:
        raise CopyStopped

    link = CopyLink(wait=stop)
    passage = entered(link)
    left = 0
    for num_bytes, asked in steps:
        link.grant(num_bytes)
        left = num_bytes + min(0, left)
        for _ in range(asked):
            try:
                link.take(passage, 10)
            except CopyStopped:
                assert left <= 0
                break
            assert left > 0
            left -= 10


def test_no_bound_lifts_it_and_forgives_what_was_taken_too_much() -> None:
    time = make(grants=iter([None]))
    time.grant(1)
    passage = entered(time.link)
    time.link.take(passage, 1000)
    time.link.take(passage, 1000)
    assert time.num_grants == 2
    time.link.take(passage, 1000)
    time.grant(1)
    time.link.take(passage, 1000)
    assert time.num_grants == 3, "it would have waited for another"


def test_a_prefetch_pauses_between_layers_while_a_load_is_on_its_way(
    link: CopyLink, waiting: Semaphore
) -> None:
    prefetch = Copier(link, entered(link, is_prefetch=True))
    prefetch.ask()
    assert prefetch.got()
    load = entered(link)
    prefetch.ask()
    assert waits(waiting)
    link.take(load, 1)
    assert not prefetch.done.acquire(blocking=False)
    link.leave(load)
    assert prefetch.got()


def test_loads_go_in_the_order_of_their_start(link: CopyLink, waiting: Semaphore) -> None:
    first, second = link.passage(is_prefetch=False), link.passage(is_prefetch=False)
    link.enter(second)
    link.take(second, 1)
    link.enter(first)
    behind = Copier(link, second)
    behind.ask()
    assert waits(waiting)
    link.take(first, 1)
    link.leave(first)
    assert behind.got()


def test_a_prefetch_that_is_claimed_goes_behind_the_loads_there_are_and_before_later_ones(
    link: CopyLink, waiting: Semaphore
) -> None:
    claimed, earlier = entered(link, is_prefetch=True), entered(link)
    assert link.want(claimed, is_prefetch=False)
    copier = Copier(link, claimed)
    copier.ask()
    assert waits(waiting)
    later = entered(link)
    link.leave(earlier)
    assert copier.got()
    behind = Copier(link, later)
    behind.ask()
    assert waits(waiting)
    link.leave(claimed)
    assert behind.got()
    assert link.copied_bytes("load") == 1, "the later one's layer is still being copied"
    assert link.copied_bytes("prefetch") == 0


@pytest.mark.parametrize("stop", [CopyLink.give_up, lambda link, _: link.close()])
def test_who_waits_for_a_grant_is_stopped_with_its_copy_or_the_link(
    link: CopyLink, waiting: Semaphore, stop: Callable[[CopyLink, Passage], None]
) -> None:
    link.grant(0)
    passage = entered(link)
    copier = Copier(link, passage)
    copier.ask()
    assert waits(waiting)
    stop(link, passage)
    assert copier.got()
    assert isinstance(copier.error, CopyStopped)
    assert not link.want(passage, is_prefetch=False)


def test_a_copy_is_stopped_while_it_waits_for_the_throttle_and_has_copied_nothing() -> None:
    link = CopyLink(1, wait=lambda *_: link.give_up(passage))
    passage = entered(link)
    with pytest.raises(CopyStopped):
        link.take(passage, 1_000_000)
    link.leave(passage)
    assert passage.num_bytes == link.copied_bytes("load") == 0


def test_what_was_given_up_and_not_stopped_yet_goes_on_if_it_is_wanted_again() -> None:
    link = CopyLink()
    passage = entered(link, is_prefetch=True)
    link.give_up(passage)
    assert link.want(passage, is_prefetch=False)
    link.take(passage, 3)
    link.leave(passage)
    assert link.copied_bytes("load") == 3


def test_the_measured_rate_is_that_of_copies_alone_and_forgets_what_was() -> None:
    time = make(grants=iter([None]))
    assert time.link.bytes_per_s is None
    time.grant(1)
    passage = entered(time.link)
    for seconds in (2.0, 2.0):
        time.link.take(passage, 1000)
        time.now += seconds
    time.link.leave(passage)
    assert time.link.bytes_per_s == pytest.approx(500)
    assert (passage.num_bytes, passage.copy_s) == (2000, 4.0)
    time.now += 100
    faster = entered(time.link)
    for _ in range(20):
        time.link.take(faster, 1000)
        time.now += 1.0
    time.link.leave(faster)
    assert time.link.bytes_per_s == pytest.approx(1000, rel=0.01)
