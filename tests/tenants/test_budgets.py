"""What budgets are used by: usage, open intents and adjustments of the period, exactly."""

import asyncio
import secrets
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.tenants.open_intents import budget_limit, make_intent, usage_of

from loraplex.tenants import api_keys, audit, budget_adjustments, budgets, intents, ledger
from loraplex.tenants.audit import Act, Actor, AuditFilter
from loraplex.tenants.budget_adjustments import Adjustment, reset
from loraplex.tenants.budgets import Budget, BudgetUse
from loraplex.tenants.db import Database
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.errors import ValueRefused
from loraplex.tenants.intents import BudgetsChanged, Intent, Opening
from loraplex.tenants.quota_tables import BudgetAdjustment
from loraplex.tenants.scoped_limits import Scope, ScopedLimit


@pytest.fixture
async def intent(database: Database, acme: TenantRecord, now: datetime) -> Intent:
    async with database.session() as session:
        key = await api_keys.mint(session, acme, "", bytes(32), now, secrets.token_bytes)
    return make_intent(acme.id, key.key_id, "req_0", now)


async def use_of(database: Database, tenant_id: str, limit: ScopedLimit) -> BudgetUse:
    async with database.reader() as session:
        return await budgets.use_of(session, Budget.of(tenant_id, limit))


async def test_use_is_what_was_billed_in_the_period_and_what_is_open(
    database: Database, intent: Intent, now: datetime
) -> None:
    def of(request_id: str, **changed: object) -> ledger.UsageRecord:
        return replace(usage_of(intent, 5, 1_000_001), request_id=request_id, **changed)  # type: ignore[arg-type]  # fields of it

    start = datetime(2026, 3, 1, tzinfo=UTC)
    async with database.session() as session:
        records = [
            of("req_1"),
            of("req_2", accepted_at=start),
            of("req_3", accepted_at=start - timedelta(microseconds=1)),
            of("req_4", billable=False, cost_pico=0, finish_reason="error"),
            of("req_5", model="tiny"),
        ]
        await ledger.append_all(session, records)
        await intents.open_all(session, [Opening(intent)])
    for scope, scope_id, requests in (
        ("tenant", intent.tenant_id, 3),
        ("project", intent.project_id, 3),
        ("key", intent.key_id, 3),
        ("key", "other", 0),
        ("adapter", "support", 2),
        ("adapter", "suppor", 0),
    ):
        named: Scope = scope  # type: ignore[assignment]  # one of them
        open_tokens = {"req_0": 30} if requests else {}
        limit = budget_limit(named, scope_id, now)
        assert await use_of(database, intent.tenant_id, limit) == BudgetUse(
            15 * requests, open_tokens
        )
        money = replace(limit, dimension="cost_micros_per_month")
        # Each request is rounded up, as it is when it is admitted.
        assert await use_of(database, intent.tenant_id, money) == BudgetUse(
            2 * requests, open_tokens
        )


async def test_sums_are_exact_beyond_what_64_bits_hold(
    database: Database, intent: Intent, now: datetime
) -> None:
    costs = [2**63 - 1, 2**63 - 2_000_000, 3]
    async with database.session() as session:
        await ledger.append_all(
            session,
            [
                replace(usage_of(intent, 1, cost), request_id=f"req_{i}")
                for i, cost in enumerate(costs, 1)
            ],
        )
        money = budget_limit("tenant", intent.tenant_id, now, dimension="cost_micros_per_month")
        names = Budget.of(intent.tenant_id, money).names()
        told = {"amount": 10**18, "reason": "so much", "actor": "cli", "created_at": now}
        session.add_all(BudgetAdjustment(id=f"adj_{i}", **names, **told) for i in range(20))
    use = await use_of(database, intent.tenant_id, money)
    assert use.spent == sum(-(-cost // 10**6) for cost in costs) + 20 * 10**18


async def test_each_reckoning_has_an_epoch_of_its_own(
    database: Database, intent: Intent, now: datetime
) -> None:
    limits = [
        budget_limit("tenant", intent.tenant_id, now),
        budget_limit("key", intent.key_id, now),
    ]

    async def reckon(turn: int) -> list[int]:
        async with database.session() as session:
            asked = limits if turn % 2 else limits[::-1]
            found = await budgets.reckon(session, intent.tenant_id, asked)
        return sorted(each.limit.budget.epoch for each in found if each.limit.budget)

    turns = await asyncio.gather(*map(reckon, range(6)))
    assert sorted(turns) == [[i, i] for i in range(1, 7)]


async def test_an_intent_is_in_the_reckoning_or_is_not_written(
    database: Database, intent: Intent, now: datetime
) -> None:
    limit = budget_limit("tenant", intent.tenant_id, now)
    async with database.session() as session:
        (first,) = await budgets.reckon(session, intent.tenant_id, [limit])

    async def open_one(number: int) -> bool:
        async with database.session() as session:
            opening = Opening(replace(intent, request_id=f"req_{number}"), checked=(first.limit,))
            return await intents.open_all(session, [opening]) == [None]

    async def reckon() -> BudgetUse:
        async with database.session() as session:
            (again,) = await budgets.reckon(session, intent.tenant_id, [limit])
            return BudgetUse(again.spent, again.reserved)

    *opened, use = await asyncio.gather(*map(open_one, range(8)), reckon())
    assert len(use.reserved) == sum(opened)  # type: ignore[arg-type]  # bools come first
    assert (await use_of(database, intent.tenant_id, limit)).reserved == use.reserved


async def test_a_reset_takes_off_what_was_spent_voids_copies_and_is_told(
    database: Database, intent: Intent, now: datetime
) -> None:
    limit = budget_limit("tenant", intent.tenant_id, now)
    budget = Budget.of(intent.tenant_id, limit)
    act = Act(Actor("admin_key", "adm_1"), now)
    async with database.session() as session:
        await ledger.append(session, replace(usage_of(intent, 5), request_id="req_1"))
        await intents.open_all(session, [Opening(intent)])
        (copy,) = await budgets.reckon(session, intent.tenant_id, [limit])
        amount, use = await reset(session, budget, "by mistake", act, secrets.token_bytes)
        late = Opening(replace(intent, request_id="req_2"), checked=(copy.limit,))
        assert await intents.open_all(session, [late]) == [BudgetsChanged()]
        assert await reset(session, budget, "again", act, secrets.token_bytes) == (0, use)
    assert amount == -15
    assert use == BudgetUse(0, {"req_0": 30})
    async with database.reader() as session:
        (row,) = await budget_adjustments.list_adjustments(session, intent.tenant_id)
        told = await audit.find_events(session, AuditFilter(action="budget.adjust"), 10)
    assert (row.amount, row.actor, row.reason) == (-15, "adm_1", "by mistake")
    assert [event.detail["amount"] for event in told] == [-15]


@pytest.mark.parametrize(("amount", "reason"), [(0, "why"), (1, " "), (1, "x" * 201), (2**53, "x")])
def test_an_adjustment_says_how_much_and_why(amount: int, reason: str, now: datetime) -> None:
    budget = Budget.of("ten_1", budget_limit("tenant", "ten_1", now))
    with pytest.raises(ValueRefused):
        Adjustment(budget, amount, reason)
