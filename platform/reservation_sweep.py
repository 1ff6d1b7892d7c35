"""Frees what budgets of the quota store have reserved for requests that never came to be.

A gateway that dies after the store has reserved and before the intent is written leaves a
reservation that no reaper knows of; so does one that dies after usage was written and before the
store was told. Every gateway looks for what nobody has renewed or settled for two leases. Where the
database has no intent of it, the budget is reckoned anew.

That frees no request that is only slow. A reckoning makes the copy void that admitted it: an intent
that is still being written is then refused, however long that took, and its request asks again
(`tenants/budgets.py`). One that was written before the reckoning read the intents counts in it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime

from loraplex.platform.admission import Admission
from loraplex.tenants import intents
from loraplex.tenants.db import Database
from loraplex.tenants.known_budgets import BudgetName, named_budgets, tenants_with_budgets
from loraplex.tenants.leases import Lease
from loraplex.tenants.quotas import Quotas
from loraplex.tenants.reservations import LapsedReservation

_log = logging.getLogger(__name__)

MAX_AT_A_TIME = 500
"""Reservations of one tenant."""


class ReservationSweep:
    """One gateway's part in it."""

    def __init__(
        self,
        lease: Lease,
        database: Database,
        quotas: Quotas,
        admission: Admission,
        now: Callable[[], datetime],
    ) -> None:
        self._lease = lease
        self._database = database
        self._quotas = quotas
        self._admission = admission
        self._now = now

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(self._lease.grace.total_seconds())
            try:
                await self.sweep()
            except Exception as error:  # noqa: BLE001  the next one may find both stores there again
                _log.warning("reservations without intents were not looked for: %r", error)

    async def sweep(self) -> None:
        """Free what is found once. Raises what the database does, and QuotaBackendUnavailable."""
        async with self._database.reader() as session:
            tenant_ids = await tenants_with_budgets(session, self._now())
        for tenant_id in tenant_ids:
            lapsed = await self._quotas.lapsed(tenant_id, MAX_AT_A_TIME)
            if lapsed:
                await self._free(tenant_id, lapsed)

    async def _free(self, tenant_id: str, lapsed: Sequence[LapsedReservation]) -> None:
        async with self._database.reader() as session:
            there = await intents.find(session, {each.request_id for each in lapsed})
            left = [each for each in lapsed if each.request_id not in there]
            limits = await named_budgets(session, tenant_id, {_budget_of(each) for each in left})
        if limits:
            _log.warning(
                "%d reservations of tenant %s have no intents; %d budgets are reckoned anew",
                len(left),
                tenant_id,
                len(limits),
            )
            await self._admission.reckon(tenant_id, limits)


def _budget_of(reservation: LapsedReservation) -> BudgetName:
    return (
        reservation.scope,
        reservation.scope_id,
        reservation.dimension,
        reservation.period_start,
    )
