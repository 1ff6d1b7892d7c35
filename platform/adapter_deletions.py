"""Finishes the deletions of adapter versions, whichever process began them.

At start, every few seconds, and when something was deleted here or its last request ended: look
which versions are being deleted; end the requests on those that go by force; tell the worker to
drop what has no request here; say what is cleared; finish what all gateways have cleared. Each step
may be repeated, so a process that dies between two leaves nothing that another does not finish.
That this gateway runs is said beside all that, so that nothing slow makes it look killed.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from loraplex.adapters.registry import gateways, life_cycle
from loraplex.adapters.registry.life_cycle import Deletion
from loraplex.engine.client import EngineClient
from loraplex.platform.adapter_bytes import AdapterBytes
from loraplex.platform.adapter_uses import AdapterUses
from loraplex.platform.errors import AdapterDeleted
from loraplex.tenants.db import Database

_log = logging.getLogger(__name__)

SWEEP_S = 20.0
SAY_S = 15.0
SAY_TIMEOUT_S = 15.0
"""Together well below `gateways.LEASE`: one attempt may fail, and the gateway still counts as
running."""
FINISH_TIMEOUT_S = 15.0
LEAVE_TIMEOUT_S = 5.0


class AdapterDeletions:
    """One gateway's part in all deletions."""

    def __init__(
        self,
        gateway_id: str,
        database: Database,
        engine: EngineClient,
        adapter_bytes: AdapterBytes,
        uses: AdapterUses,
        now: Callable[[], datetime],
    ) -> None:
        self._gateway_id = gateway_id
        self._database = database
        self._engine = engine
        self._adapter_bytes = adapter_bytes
        self._uses = uses
        self._now = now
        self._wanted = asyncio.Event()
        self._going: set[str] = set()
        """Versions that are being deleted, as of the last sweep."""
        self.on_drop: Callable[[], object] = lambda: None
        """Hears that the worker was told to drop something."""
        uses.on_end = self._note_end

    def soon(self) -> None:
        """Something was deleted: sweep now."""
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
                _log.exception("deletions of adapters were not looked after; retrying")

    async def keep_saying(self) -> None:
        """Say that this gateway runs, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(SAY_TIMEOUT_S):
                    await self.say()
            except Exception as error:  # noqa: BLE001  the next one may find the database there again
                _log.warning("others were not told that this gateway runs; retrying: %r", error)
            await asyncio.sleep(SAY_S)

    async def say(self) -> None:
        """Say once that this gateway runs."""
        async with self._database.session() as session:
            await gateways.say_running(session, self._gateway_id, self._now())
            await gateways.forget_killed(session, self._now())

    async def sweep(self) -> None:
        """Do all that can be done now."""
        async with self._database.reader() as session:
            deletions = await life_cycle.list_deletions(session)
        self._going = {deletion.model for deletion in deletions}
        # Who was resolved before that may run on what has just been retired; nobody else can.
        await self._uses.settled()
        cleared = [deletion for deletion in deletions if self._clear(deletion)]
        async with self._database.session() as session:
            ids = [deletion.id for deletion in cleared]
            await gateways.say(session, self._gateway_id, self._now(), ids)
        for deletion in cleared:
            await self._finish(deletion)

    async def leave(self) -> None:
        """All requests here have ended, and this process ends: others need not wait for it. What
        they are not told, the lease tells them."""
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S), self._database.session() as session:
                await gateways.leave(session, self._gateway_id)
        except Exception as error:  # noqa: BLE001  this process ends either way
            _log.warning("others wait for this gateway's lease to end: %s", error)

    def _clear(self, deletion: Deletion) -> bool:
        """True if nothing here runs on the version; the worker has been told then."""
        uses = self._uses.of(deletion.model)
        if deletion.is_forced:
            for use in uses:
                use.break_off(AdapterDeleted(deletion.model))
        if not uses and not deletion.is_shared:
            self._engine.drop(deletion.tenant_id, deletion.digest)
            self.on_drop()
        return not uses

    async def _finish(self, deletion: Deletion) -> None:
        try:
            async with asyncio.timeout(FINISH_TIMEOUT_S), self._database.session() as session:
                finished = await life_cycle.finish(session, deletion, self._now())
        except TimeoutError:
            _log.warning("%s cannot be deleted yet: the database is slow", deletion.model)
            return
        if finished is not None and finished.removal is not None:
            self._adapter_bytes.remove_soon(finished.removal)

    def _note_end(self, model: str) -> None:
        if model in self._going:
            self._wanted.set()
