"""Intents of many tenants are written together; none waits for another one's budgets."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
from sqlalchemy import event
from tests.platform.conftest import NOW, PEPPER
from tests.tenants.open_intents import budget_limit, make_intent

from loraplex.platform.intent_writer import IntentWriter
from loraplex.tenants import api_keys, budgets, directory
from loraplex.tenants.budgets import Budget
from loraplex.tenants.db import Database
from loraplex.tenants.intents import BudgetsChanged, Exhausted, Intent, Opening
from loraplex.tenants.scoped_limits import ScopedLimit


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant's intents, and its budget as it was reckoned."""

    template: Intent
    limit: ScopedLimit

    @property
    def budget(self) -> Budget:
        return Budget.of(self.template.tenant_id, self.limit)

    def intent(self, request_id: str) -> Intent:
        return replace(self.template, request_id=request_id)


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    database = Database.open(postgres_url)
    yield database
    await database.close()


async def make(database: Database, name: str) -> Tenant:
    async with database.session() as session:
        tenant = await directory.create(session, name, NOW, secrets.token_bytes)
        key = await api_keys.mint(session, tenant, "", PEPPER, NOW, secrets.token_bytes)
        limit = budget_limit("tenant", tenant.id, NOW)
        (reckoning,) = await budgets.reckon(session, tenant.id, [limit])
    return Tenant(make_intent(tenant.id, key.key_id, "", NOW), reckoning.limit)


async def test_a_tenant_whose_budget_is_being_reckoned_stops_no_other(database: Database) -> None:
    slow, quick = await make(database, "slow"), await make(database, "quick")
    writer = IntentWriter(database)
    async with database.session() as reckoning:
        await budgets.raise_epochs(reckoning, [slow.budget])
        checked = Opening(slow.intent("slow_1"), checked=(slow.limit,))
        unchecked = Opening(slow.intent("slow_2"), unchecked=(slow.limit,))
        waiting = [asyncio.create_task(writer.open(each)) for each in (checked, unchecked)]
        for i in range(3):
            free = Opening(quick.intent(f"quick_{i}"), checked=(quick.limit,))
            assert await asyncio.wait_for(writer.open(free), 10) is None
        by_sums = Opening(quick.intent("quick_3"), unchecked=(quick.limit,))
        assert isinstance(await asyncio.wait_for(writer.open(by_sums), 10), Exhausted)
        assert not any(task.done() for task in waiting)
    assert await asyncio.gather(*waiting) == [BudgetsChanged(), None]


async def test_what_need_not_wait_is_written_in_one_transaction(database: Database) -> None:
    acme = await make(database, "acme")
    writer, commits = IntentWriter(database), 0

    @event.listens_for(database._engine.sync_engine, "commit")
    def count(_: object) -> None:
        nonlocal commits
        commits += 1

    openings = [Opening(acme.intent(f"req_{i}"), checked=(acme.limit,)) for i in range(20)]
    assert await asyncio.gather(*map(writer.open, openings)) == [None] * 20
    assert commits <= 2
