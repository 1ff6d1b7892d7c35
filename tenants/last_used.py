"""When each key was last used: noted in memory, written to the database now and then."""

import asyncio
import logging
from datetime import datetime

from sqlalchemy import or_, update
from sqlalchemy.exc import SQLAlchemyError

from loraplex.tenants.db import Database
from loraplex.tenants.tables import AdminKey, ApiKey

_log = logging.getLogger(__name__)


class LastUsed:
    """Collects uses, so that a request costs no write and a key at most one per flush."""

    def __init__(self, table: type[ApiKey] | type[AdminKey] = ApiKey) -> None:
        """Start with nothing to write; `table` has the keys."""
        self._table = table
        self._noted: dict[str, datetime] = {}

    def note(self, key_id: str, now: datetime) -> None:
        """Remember that the key was used."""
        self._noted[key_id] = now

    async def flush(self, database: Database) -> None:
        """Write what was noted since the last flush; a failed write is tried again by the next."""
        noted, self._noted = self._noted, {}
        try:
            await self._write(database, noted)
        except BaseException:
            self._noted = noted | self._noted
            raise

    async def run(self, database: Database, interval_s: float = 60.0) -> None:
        """Flush every `interval_s` until cancelled, and then once more."""
        try:
            while True:
                await asyncio.sleep(interval_s)
                await self._try_to_flush(database)
        finally:
            await self._try_to_flush(database)

    async def _try_to_flush(self, database: Database) -> None:
        try:
            await self.flush(database)
        except SQLAlchemyError as error:
            _log.warning("when keys were last used could not be written: %s", error)

    async def _write(self, database: Database, noted: dict[str, datetime]) -> None:
        if not noted:
            return
        keys = self._table
        async with database.session() as session:
            # In one order, which gateways that write at once share: neither waits for the other.
            for key_id, used_at in sorted(noted.items()):
                # Another gateway may have seen a later use.
                later = or_(keys.last_used_at.is_(None), keys.last_used_at < used_at)
                await session.execute(
                    update(keys).where(keys.id == key_id, later).values(last_used_at=used_at)
                )
