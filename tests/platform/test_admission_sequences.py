"""Budgets hold over any sequence of admissions, ends, reckonings, losses and changes of limits."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.platform.admissions import Scene, make_scene

from loraplex.tenants.db import Database
from loraplex.tenants.errors import (
    BudgetExhausted,
    RequestExceedsLimit,
)
from loraplex.tenants.reservations import Hold

ACTED = ["find limits", "settle", "void", "reckon", "lose", "away", "kill"]
ACTED += 3 * ["admit", "put or remove"]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(ACTED),
        st.integers(0, 3),
    ),
    min_size=4,
    max_size=25,
)


async def act(scene: Scene, holds: list[Hold], action: str, number: int) -> None:
    match action:
        case "admit":
            with suppress(BudgetExhausted, RequestExceedsLimit):
                holds.append(await scene.admit_slow(number % 2))
        case "settle" if holds:
            await scene.settle(holds.pop(number % len(holds)), 5 * number)
        case "void" if holds:
            await scene.void(holds.pop(number % len(holds)))
        case "kill" if holds:
            holds.pop(number % len(holds))  # its intent stays, and its hold
        case "reckon":
            await scene.gateways[number % 2].reckon(scene.tenant_id, await scene.limits_now())
        case "lose":
            scene.store.lose()
        case "away":
            await scene.store.go_or_come_back()
        case "put or remove":
            await scene.put_or_remove(number)
        case "find limits":
            scene.slow.append(await scene.asked())


@asynccontextmanager
async def new_scene(migrated_file: Path) -> AsyncIterator[Scene]:
    with tempfile.TemporaryDirectory() as folder:
        path = shutil.copy(migrated_file, Path(folder) / "loraplex.db")
        database = Database.open(f"sqlite+aiosqlite:///{path}")
        yield await make_scene(database)
        await database.close()


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(ACTIONS, min_size=1, max_size=3))
def test_whatever_is_lost_no_budget_is_exceeded_and_in_the_end_the_store_knows_what_the_ledger_does(
    turns: list[list[tuple[str, int]]], migrated_file: Path
) -> None:
    async def run() -> None:
        async with new_scene(migrated_file) as scene:
            holds: list[Hold] = []

            async def walk(actions: list[tuple[str, int]]) -> None:
                for action, number in actions:
                    await act(scene, holds, action, number)
                    await scene.check_nothing_is_exceeded()

            await asyncio.gather(*map(walk, turns))
            await scene.store.come_back()
            for hold in holds:
                await scene.settle(hold, 3)
            await scene.reap()
            await scene.check_the_store_knows_what_the_ledger_does()

    asyncio.run(run())
