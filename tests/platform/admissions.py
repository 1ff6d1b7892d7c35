"""What tests of admission share: two gateways on one store that is lost and comes back."""

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from tests.platform.conftest import NOW
from tests.tenants.open_intents import budget_limit, make_intent, usage_of

from loraplex.platform.admission import Admission
from loraplex.platform.ledger_writer import LedgerWriter
from loraplex.tenants import (
    api_keys,
    applied_limits,
    budgets,
    directory,
    limit_changes,
)
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.budgets import PICO_PER_MICRO, Budget
from loraplex.tenants.db import Database
from loraplex.tenants.errors import (
    LimitNotFound,
)
from loraplex.tenants.intents import Intent
from loraplex.tenants.key_scopes import of_platform
from loraplex.tenants.limit_changes import NewLimit
from loraplex.tenants.limit_parents import LimitOwner
from loraplex.tenants.limits import Limits
from loraplex.tenants.orphans import hold_of, used_by
from loraplex.tenants.periods import Calendar
from loraplex.tenants.quotas import Quotas
from loraplex.tenants.quotas_memory import MemoryQuotas
from loraplex.tenants.reservations import NOTHING, Amounts, Hold, Reckoning, Reservation
from loraplex.tenants.scoped_limits import Dimension, ScopedLimit

UTC = Calendar(ZoneInfo("UTC"))
DEFAULTS = Limits(requests_per_minute=1000, tokens_per_minute=1_000_000, concurrency=100)
WORST = Amounts(10, 20, 30)
BUDGET = 100


class Store:
    """Quotas in memory that can be lost, or be away, as a shared store can."""

    def __init__(self) -> None:
        self.inner: Quotas = MemoryQuotas(time.monotonic_ns)
        self.is_away = False
        self.before_seed: Callable[[], Awaitable[None]] | None = None
        self.pending: list[tuple[Hold, Amounts]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def lose(self) -> None:
        self.inner = MemoryQuotas(time.monotonic_ns)

    async def reserve(self, asked: Reservation) -> Hold:
        if self.is_away:
            unchecked = tuple(limit for limit in asked.limits if limit.budget)
            return Hold(asked, (), unchecked=unchecked, is_degraded=True)
        return await self.inner.reserve(asked)

    async def go_or_come_back(self) -> None:
        if self.is_away:
            await self.come_back()
        else:
            self.is_away = True

    async def come_back(self) -> None:
        for hold, actual in self.pending:
            await self.inner.settle(hold, actual)
        self.pending, self.is_away = [], False

    async def settle(self, hold: Hold, actual: Amounts) -> None:
        if self.is_away:
            self.pending.append((hold, actual))
        else:
            await self.inner.settle(hold, actual)

    async def release(self, hold: Hold) -> None:
        await self.settle(hold, NOTHING)

    async def seed(self, tenant_id: str, reckonings: Sequence[Reckoning]) -> None:
        if self.before_seed is not None:
            await self.before_seed()
        await self.inner.seed(tenant_id, reckonings)


class Scene:
    """A tenant whose budgets come and go, and gateways that admit its requests."""

    def __init__(self, database: Database, template: Intent, limit: ScopedLimit) -> None:
        self.database = database
        self.template = template
        self.limit = limit
        self.store = Store()
        self.gateways = [Admission(self.store, database) for _ in range(2)]
        self.ledger = LedgerWriter(database)
        self.num_asked = 0
        self.slow: list[tuple[Reservation, Intent]] = []
        """Requests that have found their limits, and are to be admitted."""
        self.most: dict[Budget, int] = {}
        """What budgets may be used by; more than they allow, if they were when they were set."""

    @property
    def tenant_id(self) -> str:
        return self.template.tenant_id

    @property
    def owners(self) -> list[tuple[LimitOwner, Dimension]]:
        of = partial(LimitOwner, self.tenant_id)
        return [
            (of("tenant", self.tenant_id), "tokens_per_month"),
            (of("adapter", "support"), "tokens_per_month"),
            (of("key", self.template.key_id), "cost_micros_per_month"),
        ]

    async def put(self, number: int) -> None:
        owner, dimension = self.owners[number % len(self.owners)]
        grantor = of_platform(Act(CLI, NOW))
        async with self.database.session() as session:
            await limit_changes.put(session, grantor, owner, dimension, NewLimit(BUDGET), DEFAULTS)
            limit = budget_limit(owner.scope, owner.scope_id, NOW, BUDGET, dimension)
            budget = Budget.of(self.tenant_id, limit)
            self.most[budget] = max(BUDGET, (await budgets.use_of(session, budget)).total)

    async def remove(self, number: int) -> None:
        owner, dimension = self.owners[number % len(self.owners)]
        grantor = of_platform(Act(CLI, NOW))
        limit = budget_limit(owner.scope, owner.scope_id, NOW, BUDGET, dimension)
        async with self.database.session() as session:
            await limit_changes.remove(session, grantor, owner, dimension)
            self.most.pop(Budget.of(self.tenant_id, limit), None)

    async def put_or_remove(self, number: int) -> None:
        try:
            await self.remove(number)
        except LimitNotFound:
            await self.put(number)

    async def limits_now(self) -> tuple[ScopedLimit, ...]:
        of = self.template
        async with self.database.reader() as session:
            policies = await applied_limits.policies_of(
                session, of.tenant_id, of.project_id, of.key_id, "support"
            )
        found = applied_limits.limits_of(policies, DEFAULTS, of.tenant_id, UTC, NOW)
        return tuple(limit for limit in found if limit.budget)

    async def asked(self, request_id: str | None = None) -> tuple[Reservation, Intent]:
        self.num_asked += 1
        intent = replace(self.template, request_id=request_id or f"req_{self.num_asked}")
        limits = await self.limits_now()
        return Reservation(intent.request_id, self.tenant_id, limits, WORST), intent

    async def admit(self, gateway: int = 0, request_id: str | None = None) -> Hold:
        asked, intent = await self.asked(request_id)
        return await self.gateways[gateway].admit(asked, intent, self.limits_now)

    async def admit_slow(self, gateway: int) -> Hold:
        """Admit whoever found its limits first."""
        asked, intent = self.slow.pop(0) if self.slow else await self.asked()
        return await self.gateways[gateway].admit(asked, intent, self.limits_now)

    async def settle(self, hold: Hold, completion_tokens: int) -> None:
        intent = replace(self.template, request_id=hold.request_id)
        record = usage_of(intent, completion_tokens, completion_tokens * PICO_PER_MICRO)
        await self.ledger.append(record)
        await self.store.settle(hold, used_by(record))

    async def void(self, hold: Hold) -> None:
        await self.ledger.void(hold.request_id)
        await self.store.release(hold)

    async def used(self, limit: ScopedLimit | None = None) -> budgets.BudgetUse:
        async with self.database.reader() as session:
            return await budgets.use_of(session, Budget.of(self.tenant_id, limit or self.limit))

    async def store_used(self, limit: ScopedLimit | None = None) -> int | None:
        wanted = limit or self.limit
        async with self.database.reader() as session:
            epochs = await budgets.epochs_of(session, [Budget.of(self.tenant_id, wanted)])
        for epoch in epochs.values():
            current = budgets.with_epoch(wanted, epoch)
            for standing in await self.store.standings(self.tenant_id, [current]):
                return standing.used
        return None

    async def check_nothing_is_exceeded(self) -> None:
        for budget in list(self.most):
            async with self.database.reader() as session:
                use = await budgets.use_of(session, budget)
            assert use.total <= self.most.get(budget, use.total), budget

    async def check_the_store_knows_what_the_ledger_does(self) -> None:
        for limit in await self.limits_now():
            use = await self.used(limit)
            assert use.reserved == {}
            assert await self.store_used(limit) in (None, use.spent), limit.name

    async def reap(self) -> None:
        """End what was left open, at no charge, as for a gateway that died."""
        for request_id in (await self.used()).reserved:
            _, intent = await self.asked(request_id)
            async with self.database.session() as session:
                hold = await hold_of(session, intent)
            await self.ledger.void(request_id)
            await self.store.settle(hold, used_by(None))


async def make_scene(database: Database) -> Scene:
    async with database.session() as session:
        tenant = await directory.create(session, "acme", NOW, secrets.token_bytes)
        key = await api_keys.mint(session, tenant, "", bytes(32), NOW, secrets.token_bytes)
    template = make_intent(tenant.id, key.key_id, "", NOW)
    scene = Scene(database, template, budget_limit("tenant", tenant.id, NOW, BUDGET))
    await scene.put(0)
    return scene
