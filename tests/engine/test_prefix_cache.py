"""Blocks that are known by their tokens, and the pool that they lie in."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.engine.recency import LeastRecentlyUsed

from loraplex.engine.cache_eviction import EvictionOrder, FairEviction
from loraplex.engine.cached_block import Namespace
from loraplex.engine.kv_blocks import BlockPool
from loraplex.engine.prefix_cache import PrefixCache

SIZE = 2
BASE = Namespace("a", None)


class Sequences:
    """A pool with a cache, and whoever uses them: each computes all that it has not found."""

    def __init__(self, num_blocks: int, order: EvictionOrder | None = None) -> None:
        self.cache = PrefixCache(num_blocks, SIZE, order or FairEviction(num_blocks))
        self.pool = BlockPool(num_blocks, SIZE, self.cache)
        self.held: list[list[int]] = []

    def begin(self, token_ids: list[int], namespace: Namespace = BASE) -> tuple[list[int], int]:
        """A block table for a sequence, and how many of its blocks were found."""
        found = self.cache.match(namespace, token_ids, (len(token_ids) - 1) // SIZE)
        table: list[int] = []
        self.pool.share(table, found)
        self.cache.count_use(found)
        self.pool.extend(table, len(token_ids))
        self.held.append(table)
        return table, len(found)

    def compute(
        self, table: list[int], token_ids: list[int], namespace: Namespace = BASE, first: int = 0
    ) -> None:
        """Enter blocks from number `first` on."""
        for index in range(first, len(token_ids) // SIZE):
            block = self.cache.enter(namespace, token_ids, table, index)
            if block is None:
                return
            if block != table[index]:
                self.pool.replace(table, index, block)

    def end(self, table: list[int]) -> None:
        self.held = [other for other in self.held if other is not table]
        self.pool.release(table)

    def run(self, token_ids: list[int], namespace: Namespace = BASE) -> int:
        """A whole sequence; returns how many of its blocks were found."""
        table, num_found = self.begin(token_ids, namespace)
        self.compute(table, token_ids, namespace, num_found)
        self.end(table)
        self.check()
        return num_found

    def check(self) -> None:
        self.pool.check(self.held)


def test_a_sequence_finds_its_beginning_as_far_as_it_is_alike_but_never_its_last_token() -> None:
    world = Sequences(8)
    world.run([1, 2, 3, 4, 5])
    found = [world.run(ids) for ids in ([1, 2, 3, 4], [1, 2, 3, 4, 9], [1, 2, 4, 3, 5], [2, 1, 3])]
    assert found == [1, 2, 1, 0]


def test_a_block_is_found_only_behind_what_lay_before_it() -> None:
    world = Sequences(8)
    world.run([1, 2, 3, 4, 5])
    assert world.run([9, 9, 3, 4, 5]) == 0
    assert world.run([3, 4, 5]) == 0


@pytest.mark.parametrize(
    "other", [Namespace("b", None), Namespace("a", "x"), Namespace("", "a"), Namespace("a", "")]
)
def test_no_other_tenant_or_adapter_finds_what_was_computed(other: Namespace) -> None:
    world = Sequences(8)
    world.run([1, 2, 3])
    assert world.run([1, 2, 3], other) == 0
    assert world.run([1, 2, 3]) == 1


def test_what_is_not_computed_is_not_found() -> None:
    world = Sequences(8)
    table, _ = world.begin([1, 2, 3, 4, 5])
    world.compute(table, [1, 2, 3])
    assert world.run([1, 2, 3, 4, 5]) == 1
    world.end(table)
    world.check()


def test_two_that_compute_the_same_hold_it_once_afterwards() -> None:
    world = Sequences(8)
    first, _ = world.begin([1, 2, 3, 4, 5])
    second, _ = world.begin([1, 2, 3, 4, 6])
    world.compute(first, [1, 2, 3, 4, 5])
    world.compute(second, [1, 2, 3, 4, 6])
    assert second[:2] == first[:2]
    assert world.pool.num_free == 8 - 4
    world.check()


def test_blocks_of_the_cache_are_as_good_as_free_ones() -> None:
    world = Sequences(4)
    world.run([1, 2, 3, 4, 5, 6, 7])
    assert (world.pool.num_free, world.pool.num_cached) == (4, 3)
    table, _ = world.begin([9, 9, 9, 9, 9, 9, 9])
    assert (world.pool.num_free, world.pool.num_cached, world.cache.num_evicted) == (0, 0, 3)
    world.end(table)
    assert world.run([1, 2, 3]) == 0


def test_what_a_sequence_is_about_to_share_does_not_count_as_free() -> None:
    world = Sequences(4)
    world.run([1, 2, 3, 4, 5, 6])
    found = world.cache.match(BASE, [1, 2, 3, 4, 5, 6, 7], 3)
    assert world.pool.num_free_beside(found) == 1


def test_the_end_of_a_sequence_goes_before_its_beginning() -> None:
    world = Sequences(4)
    world.run([1, 2, 3, 4, 5, 6])
    world.run([7, 8, 9])
    assert world.run([1, 2, 3, 4, 5, 6, 0]) == 2


def test_a_namespace_that_is_forgotten_is_found_no_more_and_loses_no_block() -> None:
    world = Sequences(8)
    world.run([1, 2, 3, 4, 5])
    world.run([1, 2, 3], Namespace("b", None))
    running, _ = world.begin([1, 2, 7])
    world.compute(running, [1, 2, 7])
    world.pool.reclaim(world.cache.forget(BASE))
    world.check()
    world.compute(running, [1, 2, 7, 8], first=1)
    assert world.run([1, 2, 7, 8, 9]) == 0
    world.end(running)
    world.check()
    assert world.run([1, 2, 3], Namespace("b", None)) == 1


def test_to_forget_a_namespace_only_its_own_blocks_are_looked_at() -> None:
    world = Sequences(8)
    world.run([1, 2, 3, 4, 5])
    world.run([1, 2, 3], Namespace("b", None))

    class Unlooked(dict):  # type: ignore[type-arg]  # of anything
        __iter__ = keys = values = items = None  # type: ignore[assignment]  # so that a walk over it fails

    world.cache._known, known = Unlooked(world.cache._known), world.cache._known
    assert world.cache.forget(Namespace("c", None)) == []
    world.pool.reclaim(world.cache.forget(Namespace("b", None)))
    assert len(world.cache._known) == len(known) - 1
    world.check()


def test_the_version_of_a_namespace_tells_when_to_look_again() -> None:
    world = Sequences(4)
    versions = [world.cache.version(BASE)]
    world.run([1, 2, 3])
    versions.append(world.cache.version(BASE))
    world.run([5, 6, 7], Namespace("b", None))
    assert world.cache.version(BASE) == versions[1]
    world.run([1, 2, 3, 4, 5])
    versions.append(world.cache.version(BASE))
    world.run([9] * 6, Namespace("b", None))  # which takes one of two blocks
    versions.append(world.cache.version(BASE))
    assert all(before != after for before, after in pairwise(versions))


class CacheMachine(RuleBasedStateMachine):
    """Sequences that begin, compute, end, and namespaces that are forgotten, in any order, with too
    few blocks; a list of what each block holds tells what may be found."""

    num_blocks = 9
    make_order: Callable[[int], EvictionOrder] = FairEviction

    def __init__(self) -> None:
        super().__init__()
        self.world = Sequences(self.num_blocks, type(self).make_order(self.num_blocks))
        self.running: list[tuple[Namespace, list[int], list[int], int]] = []
        self.content: dict[int, tuple[Namespace, tuple[int, ...]]] = {}
        """What was last computed into each block: all tokens up to its end."""

    @rule(
        token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=9),
        namespace=st.sampled_from([BASE, Namespace("b", None), Namespace("a", "x")]),
    )
    def begin(self, token_ids: list[int], namespace: Namespace) -> None:
        pool, cache = self.world.pool, self.world.cache
        found = cache.match(namespace, token_ids, (len(token_ids) - 1) // SIZE)
        for index, block in enumerate(found):
            assert self.content[block] == (namespace, tuple(token_ids[: (index + 1) * SIZE]))
        if pool.missing(found, len(token_ids)) <= pool.num_free_beside(found):
            table, _ = self.world.begin(token_ids, namespace)
            for block in table[len(found) :]:
                self.content.pop(block, None)
            self.running.append((namespace, token_ids, table, len(found) * SIZE))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), num_tokens=st.integers(1, 5))
    def compute(self, data: st.DataObject, num_tokens: int) -> None:
        place = data.draw(st.integers(0, len(self.running) - 1))
        namespace, token_ids, table, num_computed = self.running[place]
        end = min(num_computed + num_tokens, len(token_ids))
        for index in range(num_computed // SIZE, end // SIZE):
            self.content[table[index]] = namespace, tuple(token_ids[: (index + 1) * SIZE])
        self.world.compute(table, token_ids[:end], namespace, num_computed // SIZE)
        self.running[place] = namespace, token_ids, table, end

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.world.end(self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))[2])

    @rule(namespace=st.sampled_from([BASE, Namespace("b", None)]))
    def forget(self, namespace: Namespace) -> None:
        self.world.pool.reclaim(self.world.cache.forget(namespace))

    @invariant()
    def conserves(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        for *_, table, _ in self.running:
            self.world.end(table)
        self.world.check()
        assert self.world.pool.num_free == self.num_blocks
        table, _ = self.world.begin([7] * self.num_blocks * SIZE)
        assert len(table) == self.num_blocks
        self.world.check()


class RecencyMachine(CacheMachine):
    """The same with another order of eviction."""

    make_order = staticmethod(lambda _: LeastRecentlyUsed())


for machine in (CacheMachine, RecencyMachine):
    machine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestCacheMachine = CacheMachine.TestCase
TestRecencyMachine = RecencyMachine.TestCase
