"""The bytes of adapters: put into the store under a claim, and removed from it under one."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

from loraplex.adapters.opened_store import open_store
from loraplex.adapters.registry import byte_claims
from loraplex.adapters.registry.byte_claims import Claim
from loraplex.adapters.storage import Store
from loraplex.platform.receiving import nicely
from loraplex.platform.settings import Settings
from loraplex.platform.threads import in_thread
from loraplex.tenants.db import Database

_log = logging.getLogger(__name__)

RETRY_S = 300.0
SWEEP = timedelta(days=1)
"""How often the store is swept, and how old is what nobody names when it goes."""
SETTLE_TIMEOUT_S = 10.0
_BATCH = 500


def store_of(settings: Settings) -> Store:
    """The store that the settings name. A process opens it once."""
    return open_store(settings.adapters_url, settings.data_dir, settings.adapter_cache_bytes)


class AdapterBytes:
    """One process's part in what is put and removed; see `byte_claims`."""

    def __init__(self, database: Database, store: Store, now: Callable[[], datetime]) -> None:
        self._database = database
        self._store = store
        self._now = now
        self._removing: dict[str, asyncio.Task[None]] = {}
        """By digest, what this process removes now."""
        self._ending: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def kept(
        self, digest: str, put: Callable[[], object], on_removed: Callable[[], object]
    ) -> AsyncIterator[Claim]:
        """Put bytes into the store by calling `put` in a thread; the block publishes their version
        and ends the claim that it gets.

        If it does not, for whatever reason, the bytes are removed, unless some version names them;
        `on_removed` is called then, while nobody can publish them.

        Raises:
            BytesLeaving: the same bytes are being removed elsewhere.
            StorageUnavailable: the store refuses.
        """
        if digest in self._removing:
            await asyncio.wait([self._removing[digest]])
        async with self._database.session() as session:
            claim = await byte_claims.begin_keep(session, digest, self._now())
        try:
            await nicely(put)
            yield claim
        except BaseException:
            await self._to_the_end(self._leave(claim, on_removed))
            raise

    async def remove(self, removal: Claim) -> None:
        """Remove what is claimed for that. Raises OSError where the store refuses: others begin
        anew then."""
        await in_thread(lambda: self._store.remove(removal.digest))
        async with self._database.session() as session:
            await byte_claims.give_up(session, removal)

    def remove_soon(self, removal: Claim) -> None:
        """The same, without waiting for it."""
        task = asyncio.create_task(self._try_remove(removal))
        self._removing[removal.digest] = task
        task.add_done_callback(lambda _: self._removing.pop(removal.digest, None))

    async def settled(self) -> None:
        """Return when nothing is being removed here, or after a while: others go on with it."""
        if tasks := [*self._removing.values(), *self._ending]:
            await asyncio.wait(tasks, timeout=SETTLE_TIMEOUT_S)

    async def run(self) -> None:
        """Until cancelled: sweep at once and daily, and begin anew what others did not finish."""
        swept_at: datetime | None = None
        while True:
            try:
                await self.retry()
                if swept_at is None or self._now() - swept_at >= SWEEP:
                    await self.sweep()
                    swept_at = self._now()
            except Exception:  # noqa: BLE001  the next one may find database and store there again
                _log.exception("the store of adapters was not swept; retrying")
            await asyncio.sleep(RETRY_S)

    async def retry(self) -> None:
        """Begin anew the removals that killed processes or a failing store left."""
        async with self._database.reader() as session:
            digests = await byte_claims.unfinished(session, self._now())
        for digest in digests:
            await self._remove_unnamed(digest)

    async def sweep(self) -> None:
        """Remove what lies in the store for long and no version of any tenant names."""
        before_s = (self._now() - SWEEP).timestamp()
        await in_thread(lambda: self._store.remove_partial(before_s))
        stored = await in_thread(lambda: self._store.stored(before_s))
        for start in range(0, len(stored), _BATCH):
            digests = stored[start : start + _BATCH]
            async with self._database.reader() as session:
                named = await byte_claims.named(session, digests)
            for digest in set(digests) - named:
                if await self._remove_unnamed(digest):
                    _log.info("removed adapter %s from the store: no version names it", digest)

    async def _remove_unnamed(self, digest: str) -> bool:
        async with self._database.session() as session:
            removal = await byte_claims.begin_removal(session, digest, self._now())
        if removal is None:
            return False
        await self._try_remove(removal)
        return True

    async def _try_remove(self, removal: Claim) -> None:
        try:
            await self.remove(removal)
        except Exception as error:  # noqa: BLE001  the claim stays, so it is begun anew
            _log.warning("adapter %s cannot be removed yet: %s", removal.digest, error)

    async def _leave(self, claim: Claim, on_removed: Callable[[], object]) -> None:
        try:
            async with self._database.session() as session:
                await byte_claims.give_up(session, claim)
                removal = await byte_claims.begin_removal(session, claim.digest, self._now())
            if removal is not None:
                on_removed()
                await self.remove(removal)
        except Exception as error:  # noqa: BLE001  what made us leave is what is raised
            _log.warning("adapter %s stays in the store until swept: %s", claim.digest, error)

    async def _to_the_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what goes on if the caller is cancelled, again, meanwhile."""
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)
