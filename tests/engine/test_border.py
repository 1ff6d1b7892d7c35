"""One budget for KV blocks and adapters: what is lent, what comes back, and what is kept."""

import mmap
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engine import build
from tests.engine.simulated_runner import SimulatedRunner

from loraplex.adapters.errors import ResidencyViolation
from loraplex.adapters.reservations import Reservations
from loraplex.adapters.residency import Residency, State
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.kv_blocks import BlockPool
from loraplex.engine.kv_pages import release_blocks
from loraplex.engine.plan import StepPlan
from loraplex.engine.scheduler import Scheduler
from loraplex.kernels.attention import KvLayout, allocate_kv_cache

X, Y = AdapterKey("t", "x"), AdapterKey("t", "y")


class World:
    """Blocks of 2 bytes, 12 of 16 of which stay; 4 bytes for adapters, which are as many."""

    def __init__(self) -> None:
        self.residency = Residency(4)
        config = build.config(
            num_blocks=16, min_blocks=12, lent_block_bytes=2, max_transfer_bytes=100
        )
        self.scheduler: Scheduler = build.scheduler(config, self.residency)
        self.pool = self.scheduler.blocks.pool
        self.runner = SimulatedRunner(16, 4)

    def add(self, name: str, adapter: str | None = None, tokens: int = 3, **changes: int) -> None:
        num_bytes = 0 if adapter is None else 4
        self.scheduler.add(build.submit(name, tokens, adapter=adapter, **changes), 0.0, num_bytes)

    def step(self) -> StepPlan:
        plan = self.scheduler.plan(0.0)
        self.runner.copy(plan)
        self.scheduler.commit(plan, self.runner.run(plan))
        self.runner.poison(self.pool.free())
        for key in plan.loads:
            self.residency.finish_load(key)
        self.scheduler.check()
        return plan

    def fill_with_adapters(self) -> None:
        """Two run on adapters, of which one lies in lent memory."""
        self.add("a", "x", max_tokens=20)
        self.add("b", "y", max_tokens=20)
        assert self.step().loads == (X, Y)


def test_blocks_that_nobody_holds_are_lent_to_an_adapter_that_a_request_waits_for() -> None:
    world = World()
    world.add("a", "x", max_tokens=20)
    assert world.step().lent_blocks == ()
    world.add("b", "y", max_tokens=20)
    plan = world.step()
    assert (plan.loads, plan.lent_blocks) == ((Y,), (15, 14))
    assert (world.pool.num_blocks, world.residency.capacity_bytes) == (14, 8)


def test_no_more_is_lent_than_leaves_the_pool_its_floor() -> None:
    world = World()
    for number, digest in enumerate("xyz"):
        world.add(str(number), digest, max_tokens=20)
    world.step()
    assert world.pool.num_lent == 4
    world.add("one too many", "w")
    assert world.step().loads == ()
    assert world.pool.num_blocks == 12


def test_who_waits_for_blocks_gets_them_from_adapters_of_which_nobody_has_need() -> None:
    world = World()
    world.fill_with_adapters()
    while world.scheduler.has_work:
        world.step()
    assert world.pool.num_lent == 2
    assert world.residency.state(X) is world.residency.state(Y) is State.RESIDENT
    for name in ("long", "longer"):
        world.add(name, tokens=30, max_tokens=2)
    while world.scheduler.num_waiting:
        plan = world.step()
    assert plan.evictions == (X,)
    assert world.pool.num_lent == 0
    assert world.residency.capacity_bytes == 4


def test_an_adapter_that_runs_or_is_waited_for_is_not_given_up_for_blocks() -> None:
    world = World()
    world.fill_with_adapters()
    world.step()
    world.add("long", tokens=40, max_tokens=2)
    world.add("longer", tokens=40, max_tokens=2)
    for _ in range(5):
        assert world.step().evictions == ()
    assert world.pool.num_lent == 2
    while world.scheduler.has_work:
        world.step()


def test_a_tenant_at_its_cap_is_lent_nothing() -> None:
    residency = Residency(4)
    assert residency.missing_bytes(4, "t") is None, "it has room without"
    residency.reserve(Reservations(1, caps={"t": 5}))
    assert residency.missing_bytes(6, "t") is None
    assert residency.missing_bytes(6, "u") == 2


def test_adapters_keep_their_floor() -> None:
    residency = Residency(4)
    residency.resize(6)
    assert residency.resize(4) == ()
    with pytest.raises(ResidencyViolation, match="3 bytes"):
        residency.resize(3)


def test_a_border_that_moves_leaves_room_for_the_longest_request() -> None:
    with pytest.raises(ValueError, match="min_blocks"):
        build.config(num_blocks=16, min_blocks=11, lent_block_bytes=1)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=30))
def test_blocks_are_the_pools_or_lent_and_never_both(moves: list[tuple[bool, int]]) -> None:
    pool, table = BlockPool(8, 4), []
    for lends, number in moves:
        if lends:
            lent = pool.lend(min(number, pool.num_free))
            assert not set(lent) & {*pool.free(), *table}
        else:
            pool.take_back(min(number, pool.num_lent))
        if number % 2:
            pool.release(table)
        else:
            pool.extend(table, 4 * min(number, pool.num_free))
        assert pool.num_blocks + pool.num_lent == 8
        pool.check([table])


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_the_memory_of_blocks_that_are_lent_goes_back_to_the_system() -> None:
    layout = KvLayout(64, 16)
    caches = [
        allocate_kv_cache(layout, 8, (128, 96), dtype=torch.float32, device=torch.device("cpu"))
        for _ in range(4)
    ]
    for cache in caches:
        for pool in cache:
            pool.fill_(7.0)
    before = resident_bytes()
    release_blocks(caches, [*range(32, 64), 3])
    given_back = before - resident_bytes()
    each = sum(pool[0].nbytes for cache in caches for pool in cache)
    assert given_back > 0.9 * 33 * each
    for cache in caches:
        for pool in cache:
            assert pool[[0, 2, 4, 31, 64]].eq(7.0).all(), "a neighbour was given up"
            pool[40] = 1.0
            assert pool[40].eq(1.0).all()
