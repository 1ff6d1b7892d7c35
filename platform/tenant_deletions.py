"""Finishes the deletions of tenants, whichever process began them; every step may be repeated."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from loraplex.adapters.registry import tenant_deletion
from loraplex.platform.adapter_deletions import AdapterDeletions
from loraplex.tenants.db import Database

_log = logging.getLogger(__name__)

SWEEP_S = 20.0


class TenantDeletions:
    """One gateway's part in all of them."""

    def __init__(
        self, database: Database, adapter_deletions: AdapterDeletions, now: Callable[[], datetime]
    ) -> None:
        self._database = database
        self._adapter_deletions = adapter_deletions
        self._now = now
        self._wanted = asyncio.Event()

    def soon(self) -> None:
        """A tenant is being deleted: look now."""
        self._adapter_deletions.soon()
        self._wanted.set()

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_S):
                    await self._wanted.wait()
            self._wanted.clear()
            try:
                await self.sweep()
            except Exception:  # noqa: BLE001  the next one may find the database there again
                _log.exception("deletions of tenants were not looked after; retrying")

    async def sweep(self) -> None:
        """Do all that can be done now."""
        async with self._database.reader() as session:
            tenants = await tenant_deletion.unfinished(session)
        for tenant_id in tenants:
            async with self._database.session() as session:
                is_over = await tenant_deletion.advance(session, tenant_id, self._now())
            if is_over:
                _log.info("tenant %s is deleted", tenant_id)
            else:
                self._adapter_deletions.soon()
