"""Tenants take turns, whatever is cancelled."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from loraplex.engine.self_test.turns import FairTurns


class World:
    def __init__(self) -> None:
        self.turns = FairTurns()
        self.order: list[str] = []
        self.inside = 0
        self.gate = asyncio.Event()

    def ask(self, tenant: str) -> "asyncio.Task[None]":
        return asyncio.create_task(self._ask(tenant))

    async def _ask(self, tenant: str) -> None:
        async with self.turns.turn(tenant):
            self.inside += 1
            assert self.inside == 1, "one at a time"
            self.order.append(tenant)
            try:
                await self.gate.wait()
                await asyncio.sleep(0)
            finally:
                self.inside -= 1


async def test_a_tenant_with_many_keeps_another_waiting_for_one() -> None:
    world = World()
    tasks = [world.ask("many") for _ in range(5)]
    await asyncio.sleep(0)
    tasks += [world.ask("one"), world.ask("other")]
    await asyncio.sleep(0)
    world.gate.set()
    await asyncio.gather(*tasks)
    assert world.order == ["many", "many", "one", "other", "many", "many", "many"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=12))
def test_all_that_are_not_cancelled_get_a_turn_and_nobody_else(
    asked: list[tuple[str, int]],
) -> None:
    """The number says after which of three moments one is cancelled, if at all."""

    async def play() -> None:
        world = World()
        tasks = [(world.ask(tenant), at) for tenant, at in asked]
        for moment in range(3):
            await asyncio.sleep(0)
            if moment == 1:
                world.gate.set()
            for task, at in tasks:
                if at == moment:
                    task.cancel()
        async with asyncio.timeout(30):
            results = await asyncio.gather(*(t for t, _ in tasks), return_exceptions=True)
            await world.ask("last")
        assert all(result is None for result, (_, at) in zip(results, tasks, strict=True) if at > 2)
        assert world.order[-1] == "last"

    asyncio.run(play())
