"""Admits a request: its worst case is held in the store, and its intent durable, or neither.

The store decides first, since it refuses most of what is refused; then the intent is written, but
only if budgets have not been set or reckoned anew since. Where they have been, the hold is given
back and the request asks again, by the limits that hold now. What the store does not know of a
budget is reckoned from the database.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from weakref import WeakValueDictionary

from loraplex.platform.errors import LedgerUnavailable
from loraplex.platform.intent_writer import IntentWriter
from loraplex.platform.ledger_writer import OUTAGES
from loraplex.platform.limit_standings import reserve
from loraplex.tenants import budgets, intents
from loraplex.tenants.budget_epochs import BudgetEpochs
from loraplex.tenants.db import Database
from loraplex.tenants.errors import (
    BudgetExhausted,
    BudgetsUnknown,
    HoldConflict,
    QuotaBackendUnavailable,
)
from loraplex.tenants.intents import AlreadyOpen, BudgetsChanged, Exhausted, Intent, Opening
from loraplex.tenants.leases import Lease
from loraplex.tenants.ledger import records_of
from loraplex.tenants.orphans import used_by
from loraplex.tenants.quotas import Quotas
from loraplex.tenants.reservations import NOTHING, Hold, Reckoning, Reservation
from loraplex.tenants.scoped_limits import ScopedLimit

_log = logging.getLogger(__name__)

MAX_ATTEMPTS = 10
"""Each after somebody else reckoned a budget anew; more would mean that gateways, each with quotas
of its own, take turns."""


LimitsNow = Callable[[], Awaitable[tuple[ScopedLimit, ...]]]
"""Finds the limits of a request as they are now."""


class Admission:
    """Holds and intents of one gateway's requests. `admit` belongs into a task that nobody cancels:
    a hold whose intent was not written, or the other way round, would wait for its lease."""

    def __init__(self, quotas: Quotas, database: Database) -> None:
        self._quotas = quotas
        self._database = database
        self._writer = IntentWriter(database)
        self._epochs = BudgetEpochs(database)
        self._reckoning: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def admit(self, asked: Reservation, intent: Intent, limits_now: LimitsNow) -> Hold:
        """Return the hold of a request whose intent is durable.

        Raises:
            QuotaError: see `Quotas.reserve`, but for BudgetsUnknown.
            Whatever `limits_now` does.
            LedgerUnavailable: the database is away.
        """
        try:
            for _ in range(MAX_ATTEMPTS):
                limits = await self._epochs.current(asked.tenant_id, asked.limits)
                asked = replace(asked, limits=limits)
                hold = await self._reserve(asked)
                if hold is not None and await self._open(hold, intent):
                    return hold
                if hold is not None:
                    asked = replace(asked, limits=await limits_now())
        except OUTAGES as error:
            _log.warning("a request was not admitted: the database is away: %s", error)
            raise LedgerUnavailable from error
        raise QuotaBackendUnavailable(
            "Budgets of the tenant were reckoned anew again and again; gateways that share a "
            "database need quotas that they share, too (LORAPLEX_REDIS_URL)."
        )

    async def renew(self, lease: Lease, until: datetime, delivered: Mapping[str, int]) -> set[str]:
        """Renew intents of the gateway; see `intents.renew`. Raises what the database does."""
        async with self._database.session() as session:
            return await intents.renew(session, lease.gateway_id, until, delivered)

    async def reckon(self, tenant_id: str, limits: Sequence[ScopedLimit]) -> None:
        """Reckon budgets anew and tell the store, whatever it knows of them."""
        async with self._database.session() as session:
            reckonings = await budgets.reckon(session, tenant_id, limits)
        self._epochs.note(tenant_id, reckonings)
        await self._quotas.seed(tenant_id, reckonings)
        await self._settle_ended(tenant_id, reckonings)

    async def _settle_ended(self, tenant_id: str, reckonings: Sequence[Reckoning]) -> None:
        """Tell the store of requests that were open when they were reckoned, and are not any more:
        it may have been told so before it was told that they are open."""
        reserved = {request_id for each in reckonings for request_id in each.reserved}
        if not reserved:
            return
        async with self._database.reader() as session:
            ended = reserved - await intents.find(session, reserved)
            records = await records_of(session, ended) if ended else {}
        limits = tuple(each.limit for each in reckonings)
        for request_id in ended:
            asked = Reservation(request_id, tenant_id, limits, NOTHING)
            hold = Hold(reservation=asked, standings=())
            await self._quotas.settle(hold, used_by(records.get(request_id)))

    async def _reserve(self, asked: Reservation) -> Hold | None:
        """The hold, or None where budgets were not known and may be now."""
        try:
            return await reserve(self._quotas, asked)
        except BudgetsUnknown as unknown:
            await self._learn(asked.tenant_id, unknown.limits)
            return None

    async def _learn(self, tenant_id: str, unknown: Sequence[ScopedLimit]) -> None:
        """Reckon budgets, unless somebody has done so since they were asked for."""
        lock = self._reckoning.setdefault(tenant_id, asyncio.Lock())
        async with lock:
            self._epochs.forget(tenant_id, unknown)
            current = await self._epochs.current(tenant_id, unknown)
            if current == tuple(unknown):
                await self.reckon(tenant_id, current)

    async def _open(self, hold: Hold, intent: Intent) -> bool:
        """True if the intent was written; else the hold is given back."""
        tenant_id = hold.reservation.tenant_id
        known = [each for each in hold.reservation.limits if each.budget is not None]
        opening = Opening(
            intent,
            checked=tuple(each for each in known if each not in hold.unchecked),
            unchecked=hold.unchecked,
        )
        try:
            refusal = await self._writer.open(opening)
        except BaseException:
            await self._release(hold)
            raise
        match refusal:
            case None:
                return True
            case AlreadyOpen():
                # The hold may be that of the request which has the intent.
                raise HoldConflict(f"Request {intent.request_id} runs already; ids are used once.")
            case BudgetsChanged():
                self._epochs.forget(tenant_id, known)
                await self._release(hold)
                return False
            case Exhausted(limit):
                await self._release(hold)
                assert limit.budget is not None
                raise BudgetExhausted(limit, limit.budget.period.end)

    async def _release(self, hold: Hold) -> None:
        try:
            await self._quotas.release(hold)
        except QuotaBackendUnavailable as error:
            _log.warning("the hold of request %s ends with its lease: %s", hold.request_id, error)
