import pytest

from loraplex.adapters.demand import Demand
from loraplex.adapters.eviction import (
    Eviction,
    GreedyDualSizeFrequency,
    LeastFrequentlyUsed,
    LeastRecentlyUsed,
    LeastWorth,
)
from loraplex.adapters.residency import Residency, State
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.simulation.caches import Belady, ChameleonScore, Pinned


def key(name: str) -> AdapterKey:
    return AdapterKey("t", name)


def num_loads(uses: str, num_slots: int, eviction: Eviction) -> int:
    """Loads for a sequence of uses, one after the other, of adapters of one byte."""
    residency, loads = Residency(num_slots, eviction), 0
    for name in uses:
        residency.demand.arrived(key(name), 1)
        if residency.state(key(name)) is State.ABSENT:
            residency.start_load(key(name), 1)
            residency.finish_load(key(name))
            loads += 1
        residency.acquire(key(name))
        residency.release(key(name))
    residency.check()
    return loads


def test_belady_loads_least_where_lru_loads_every_time() -> None:
    uses = "abcd" * 10
    assert num_loads(uses, 3, LeastRecentlyUsed()) == 40
    best = num_loads(uses, 3, Belady([key(name) for name in uses]))
    assert best == 16  # 4, then one of three


@pytest.mark.parametrize(
    "eviction", [GreedyDualSizeFrequency(), LeastFrequentlyUsed(), ChameleonScore(), LeastWorth()]
)
def test_what_is_used_often_stays_while_others_pass_by(eviction: Eviction) -> None:
    uses = "aaaaaa" + "".join(
        f"{name}a" if i % 3 == 0 else name for i, name in enumerate("bcdefgh")
    )
    residency_loads = num_loads(uses, 2, eviction)
    assert residency_loads == 8


def test_chameleon_lets_the_smaller_of_two_go() -> None:
    residency = Residency(10, ChameleonScore())
    for name, size in (("small", 2), ("large", 8)):
        residency.start_load(key(name), size)
        residency.finish_load(key(name))
    assert residency.start_load(key("new"), 2) == (key("small"),)


def test_gdsf_ages_so_that_old_fame_does_not_last_for_ever() -> None:
    passing = "".join("bcdefgh"[i % 7] * 2 for i in range(60))
    eviction = GreedyDualSizeFrequency()
    num_loads("aaaa" + passing, 2, eviction)
    assert key("a") not in eviction._priority


def test_what_is_pinned_goes_after_all_others() -> None:
    hot, *others = (AdapterKey("t", f"d{i}") for i in range(10))
    rule = Pinned([hot, hot, *others])
    assert rule.order([hot, *others], Demand()) == [*others, hot]
