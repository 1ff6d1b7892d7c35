"""Versions, aliases, canaries, deletions against their definition, over any sequence of calls."""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.adapters.shop import Shop, open_shop

from loraplex.adapters.registry import aliases, life_cycle
from loraplex.adapters.registry.errors import ModelNotFound, RegistryError
from loraplex.tenants.errors import ValueRefused

NUMBERS = st.integers(min_value=1, max_value=3)
ALIASES = st.sampled_from(["prod", "beta"])


@dataclass
class Meant:
    """What an alias means, by definition."""

    version: int
    previous: int | None = None
    canary: int | None = None


@dataclass
class World:
    """What the registry must show."""

    status: dict[int, str] = field(default_factory=dict)
    deleting: set[int] = field(default_factory=set)
    aliases: dict[str, Meant] = field(default_factory=dict)

    def is_ready(self, number: int) -> bool:
        return self.status.get(number) == "ready"

    def users(self, number: int) -> list[str]:
        meant = self.aliases.items()
        return [name for name, alias in meant if number in (alias.version, alias.canary)]

    def leave(self, number: int) -> None:
        for name in self.users(number):
            if self.aliases[name].version == number:
                del self.aliases[name]
            else:
                self.aliases[name].canary = None

    def forget(self, number: int) -> None:
        for alias in self.aliases.values():
            if alias.previous == number:
                alias.previous = None


class RegistryMachine(RuleBasedStateMachine):
    """One adapter with three versions and two aliases."""

    def __init__(self, template: Path) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="registry-machine-"))
        database = shutil.copy(template, self.folder / "loraplex.db")
        self.stack = AsyncExitStack()
        opened = open_shop(f"sqlite+aiosqlite:///{database}")
        self.shop: Shop = self.runner.run(self.stack.enter_async_context(opened))
        self.world = World()

    def does(self, work: Awaitable[Any], *, is_allowed: bool) -> None:
        """The registry takes the call if the definition does."""
        try:
            self.runner.run(_awaited(work))
        except (RegistryError, ValueRefused):
            assert not is_allowed
        else:
            assert is_allowed

    @initialize()
    def publish_all(self) -> None:
        for number in (1, 2, 3):
            self.publish(number)

    @rule(number=NUMBERS)
    def publish(self, number: int) -> None:
        self.does(self.shop.publish(f"d{number}"), is_allowed=True)
        self.world.status[number] = "ready"
        self.world.deleting.discard(number)

    @rule(alias=ALIASES, number=NUMBERS, expected=st.none() | st.integers(0, 3))
    def point(self, alias: str, number: int, expected: int | None) -> None:
        meant = self.world.aliases.get(alias)
        now = 0 if meant is None else meant.version
        may = self.world.is_ready(number) and (now == number or expected in (None, now))
        self.does(self.shop.point(alias, number, expected), is_allowed=may)
        if may and now != number:
            self.world.aliases[alias] = Meant(number, now or None)

    @rule(alias=ALIASES)
    def roll_back(self, alias: str) -> None:
        meant = self.world.aliases.get(alias)
        may = meant is not None and meant.previous is not None
        may = may and self.world.is_ready(meant.previous)
        self.does(self.shop.act(aliases.roll_back, alias), is_allowed=may)
        if may:
            self.world.aliases[alias] = Meant(meant.previous)

    @rule(alias=ALIASES, number=NUMBERS, percent=st.integers(0, 101))
    def set_canary(self, alias: str, number: int, percent: int) -> None:
        meant = self.world.aliases.get(alias)
        may = meant is not None and self.world.is_ready(number) and 1 <= percent <= 100
        may = may and meant.version != number
        self.does(self.shop.canary(alias, number, percent), is_allowed=may)
        if may:
            meant.canary = number

    @rule(alias=ALIASES)
    def promote(self, alias: str) -> None:
        meant = self.world.aliases.get(alias)
        may = meant is not None and meant.canary is not None
        self.does(self.shop.act(aliases.promote, alias), is_allowed=may)
        if may:
            self.world.aliases[alias] = Meant(meant.canary, meant.version)

    @rule(alias=ALIASES)
    def clear_canary(self, alias: str) -> None:
        meant = self.world.aliases.get(alias)
        self.does(self.shop.act(aliases.clear_canary, alias), is_allowed=meant is not None)
        if meant is not None:
            meant.canary = None

    @rule(alias=ALIASES)
    def delete_alias(self, alias: str) -> None:
        self.does(self.shop.act(aliases.delete_alias, alias), is_allowed=True)
        self.world.aliases.pop(alias, None)

    @rule(number=NUMBERS, force=st.booleans())
    def retire(self, number: int, force: bool) -> None:
        may = not self.world.is_ready(number) or force or not self.world.users(number)
        work = self.shop.act(life_cycle.retire, number, force=force)
        self.does(work, is_allowed=may)
        if may and self.world.is_ready(number):
            self.world.leave(number)
            self.world.status[number] = "retired"

    @rule(number=NUMBERS)
    def restore(self, number: int) -> None:
        may = self.world.status[number] != "deleted" and number not in self.world.deleting
        self.does(self.shop.act(life_cycle.restore, number), is_allowed=may)
        if may:
            self.world.status[number] = "ready"

    @rule(number=NUMBERS, mode=st.sampled_from(["drain", "force"]))
    def delete(self, number: int, mode: str) -> None:
        is_new = self.world.status[number] != "deleted" and number not in self.world.deleting
        may = not is_new or mode == "force" or not self.world.users(number)
        self.does(self.shop.act(life_cycle.delete_version, number, mode), is_allowed=may)
        if may and is_new:
            self.world.leave(number)
            self.world.forget(number)
            self.world.status[number] = "retired"
            self.world.deleting.add(number)

    @rule()
    def finish(self) -> None:
        done = self.runner.run(self.shop.finish_all())
        assert done == [f"acme/support@{number}" for number in sorted(self.world.deleting)]
        for number in self.world.deleting:
            self.world.status[number] = "deleted"
        self.world.deleting.clear()

    @invariant()
    def what_is_shown_is_what_it_must_be(self) -> None:
        shop, world = self.shop, self.world
        for alias in ("prod", "beta"):
            meant = world.aliases.get(alias)
            found = self.version_of(f"acme/support:{alias}", None)
            assert found == (None if meant is None else meant.version)
            if meant is not None:
                assert world.is_ready(meant.version), "an alias means what cannot be called"
                in_use = {meant.version, meant.canary} - {None}
                assert self.version_of(f"acme/support:{alias}", "user") in in_use
        ready = [number for number in world.status if world.is_ready(number)]
        assert self.version_of("acme/support", None) == (max(ready) if ready else None)
        left = {f"d{n}" for n, status in world.status.items() if status != "deleted"}
        assert shop.stored == left, "bytes are lost, or left"

    def version_of(self, model: str, sticky: str | None) -> int | None:
        try:
            return self.runner.run(self.shop.resolve(model, sticky=sticky)).version
        except ModelNotFound:
            return None

    def teardown(self) -> None:
        self.runner.run(self.stack.aclose())
        self.runner.close()
        shutil.rmtree(self.folder)


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


def test_the_registry_is_its_definition_over_any_sequence(migrated_file: Path) -> None:
    run_state_machine_as_test(
        lambda: RegistryMachine(migrated_file),
        settings=settings(max_examples=20, stateful_step_count=25, deadline=None),
    )
