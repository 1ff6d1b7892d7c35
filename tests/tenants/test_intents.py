"""Intents: written before requests run, only where budgets are still what admitted them."""

import secrets
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from tests.tenants.open_intents import LEASE, budget_limit, make_intent, usage_of

from loraplex.tenants import api_keys, budgets, intents, ledger
from loraplex.tenants.budgets import Budget
from loraplex.tenants.db import Database
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.intents import (
    AlreadyOpen,
    BudgetsChanged,
    Exhausted,
    Intent,
    Opening,
    Refusal,
)
from loraplex.tenants.scoped_limits import ScopedLimit


@pytest.fixture
async def intent(database: Database, acme: TenantRecord, now: datetime) -> Intent:
    async with database.session() as session:
        key = await api_keys.mint(session, acme, "", bytes(32), now, secrets.token_bytes)
    return make_intent(acme.id, key.key_id, "req_1", now)


@pytest.fixture
def limit(acme: TenantRecord, now: datetime) -> ScopedLimit:
    return budget_limit("tenant", acme.id, now)


async def open_all(database: Database, *openings: Opening) -> list[Refusal | None]:
    async with database.session() as session:
        return await intents.open_all(session, openings)


async def reckon(database: Database, limit: ScopedLimit) -> ScopedLimit:
    async with database.session() as session:
        (reckoning,) = await budgets.reckon(session, limit.scope_id, [limit])
    return reckoning.limit


async def test_an_id_that_is_open_is_not_opened_again(database: Database, intent: Intent) -> None:
    other = replace(intent, request_id="req_2")
    assert await open_all(database, Opening(intent)) == [None]
    refusals = await open_all(database, Opening(intent), Opening(other), Opening(other))
    assert refusals == [AlreadyOpen(), None, None]
    async with database.reader() as session:
        assert await intents.find(session, ["req_1", "req_2", "req_3"]) == {"req_1", "req_2"}


async def test_a_budget_that_was_reckoned_since_admits_again(
    database: Database, intent: Intent, limit: ScopedLimit
) -> None:
    never = await open_all(database, Opening(intent, checked=(limit,)))
    current = await reckon(database, limit)
    fits = replace(intent, request_id="req_2")
    assert never == [BudgetsChanged()]
    assert await open_all(database, Opening(fits, checked=(current,))) == [None]
    await reckon(database, limit)
    assert await open_all(database, Opening(intent, checked=(current,))) == [BudgetsChanged()]


async def test_budgets_past_the_store_are_never_exceeded_and_void_its_copy(
    database: Database, intent: Intent, limit: ScopedLimit
) -> None:
    copy = await reckon(database, limit)
    async with database.session() as session:
        await ledger.append(session, usage_of(replace(intent, request_id="req_0"), 10))
    asked = [replace(intent, request_id=f"req_{i}") for i in range(1, 5)]
    # 20 of 100 tokens are spent and each may take 30: two fit.
    first = await open_all(database, Opening(asked[0], unchecked=(limit,)))
    rest = await open_all(database, *(Opening(each, unchecked=(limit,)) for each in asked[1:]))
    assert [*first, *rest] == [None, None, Exhausted(limit), Exhausted(limit)]
    late = replace(intent, request_id="req_9")
    assert await open_all(database, Opening(late, checked=(copy,))) == [BudgetsChanged()]
    shadow, lenient = replace(limit, mode="shadow"), replace(limit, on_store_loss="open")
    assert await open_all(database, Opening(late, unchecked=(shadow, lenient))) == [None]


async def test_usage_takes_the_intents_place(
    database: Database, intent: Intent, limit: ScopedLimit
) -> None:
    await open_all(database, Opening(intent))
    budget = Budget.of(intent.tenant_id, limit)
    async with database.session() as session:
        before = await budgets.use_of(session, budget)
        await intents.close(session, ["req_1"])
        await ledger.append(session, usage_of(intent, 5))
        after = await budgets.use_of(session, budget)
    assert (before.spent, before.reserved) == (0, {"req_1": 30})
    assert (after.spent, after.reserved) == (15, {})


async def test_an_owner_that_was_cut_off_gets_its_intent_back_and_learns_what_is_gone(
    database: Database, intent: Intent, now: datetime
) -> None:
    await open_all(database, Opening(intent), Opening(replace(intent, request_id="req_2")))
    later = now + LEASE + timedelta(seconds=1)
    async with database.session() as session:
        assert await intents.claim(session, "gtw_b", now, later, 10) == []
        claimed = await intents.claim(session, "gtw_b", later, later + LEASE, 10)
        assert await intents.claim(session, "gtw_c", later, later + LEASE, 10) == []
    assert {each.request_id for each in claimed} == {"req_1", "req_2"}
    async with database.session() as session:
        gone = await intents.renew(session, "gtw_a", later + LEASE, {"req_1": 7, "req_9": 1})
        mine = await intents.held(session, "gtw_b", ["req_1", "req_2"])
        own = await intents.held(session, "gtw_a", ["req_1"])
    assert gone == {"req_9"}
    assert set(mine) == {"req_2"}
    assert own["req_1"].delivered_tokens == 7


async def test_sums_tell_what_is_open_and_what_is_overdue(
    database: Database, intent: Intent, now: datetime
) -> None:
    longer = replace(intent, request_id="req_2", lease_until=now + 2 * LEASE)
    await open_all(database, Opening(intent), Opening(longer))
    async with database.reader() as session:
        sums = await intents.open_sums(session, now + LEASE + timedelta(seconds=1))
    assert sums == {intent.tenant_id: intents.OpenSum(intents=2, tokens=60, overdue=1)}
