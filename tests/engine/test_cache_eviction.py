"""What stays in the prefix cache when more is computed than it holds."""

import pytest
from tests.engine.recency import LeastRecentlyUsed
from tests.engine.test_prefix_cache import Sequences

from loraplex.engine.cache_eviction import EvictionOrder, FairEviction
from loraplex.engine.cached_block import Namespace

PREFIX = [1, 2, 3, 4, 5, 6, 7, 8]
A, B, C = (Namespace(tenant, None) for tenant in "abc")


def once(number: int, num_tokens: int = 8) -> list[int]:
    """A prompt that nobody else has."""
    return [1000 * (number + 1) + i for i in range(num_tokens)]


def hits_in_a_scan(order: EvictionOrder, num_prompts: int, every: int) -> list[int]:
    """Blocks found of a prefix that is asked for after so many prompts that are read once."""
    world = Sequences(32, order)
    found = [world.run([*PREFIX, 0])]
    for number in range(num_prompts):
        world.run(once(number))
        if number % every == every - 1:
            found.append(world.run([*PREFIX, number]))
    return found


def test_a_scan_of_prompts_read_once_does_not_flush_a_prefix_that_was_used_often() -> None:
    # 32 blocks hold eight prompts. Asked for after six, the prefix is used again in time under any
    # order, and has a history; then it outlives two fillings of the cache, which recency forgets.
    assert hits_in_a_scan(FairEviction(32), 120, 6)[1:] == [4] * 20
    assert hits_in_a_scan(LeastRecentlyUsed(), 120, 6)[1:] == [4] * 20
    world, recent = Sequences(32), Sequences(32, LeastRecentlyUsed())
    for each in (world, recent):
        for number in range(3):
            each.run([*PREFIX, number])
        for number in range(16):
            each.run(once(number))
    assert world.run([*PREFIX, 9]) == 4
    assert recent.run([*PREFIX, 9]) == 0


def test_what_was_used_often_and_never_again_goes_in_the_end() -> None:
    world = Sequences(32)
    for number in range(1000):
        world.run([*PREFIX, number])
    for number in range(12 * 8):
        world.run(once(number))
    assert world.run([*PREFIX, 1]) == 0


def test_a_scan_of_one_tenant_takes_nothing_from_those_who_have_less() -> None:
    world = Sequences(32)
    for tenant in (B, C):
        world.run(PREFIX, tenant)
    for number in range(25):
        world.run(once(number), A)
    assert [world.run([*PREFIX, 9], tenant) for tenant in (B, C)] == [4, 4]


def test_a_tenant_gets_its_share_of_a_cache_that_another_has_filled() -> None:
    world = Sequences(32)
    for number in range(20):
        world.run(once(number), A)
    for number in range(4):
        world.run(once(number), B)
    assert [world.run([*once(number), 9], B) for number in range(4)] == [4] * 4


def test_who_has_used_nothing_for_several_fillings_of_the_pool_loses_first() -> None:
    world = Sequences(32)
    world.run(PREFIX, B)
    for number in range(5 * 8):
        world.run(once(number), A)
    assert world.run([*PREFIX, 9], B) == 0


@pytest.mark.parametrize("num_tenants", [1, 7])
def test_the_same_history_leaves_the_same_blocks(num_tenants: int) -> None:
    def history() -> list[int]:
        world = Sequences(24)
        for number in range(60):
            tenant = Namespace(str(number % num_tenants), None)
            world.run(once(number % 11, 2 + number % 7), tenant)
        return [each and each.key for each in world.cache._by_block]

    assert history() == history()
