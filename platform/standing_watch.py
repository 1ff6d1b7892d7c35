"""Breaks off requests whose tenant was suspended, whose key was revoked or whose project was
archived while they run: within a second or so, on every gateway."""

import asyncio
import logging

from loraplex.platform.catalogue import Catalogue
from loraplex.platform.ledger_writer import OUTAGES
from loraplex.platform.open_requests import OpenRequests
from loraplex.tenants.errors import DatabaseError, KeyRevoked

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


class StandingWatch:
    """One gateway's part in it."""

    def __init__(self, catalogue: Catalogue, open_requests: OpenRequests) -> None:
        self._catalogue = catalogue
        self._open_requests = open_requests
        self.is_database_away = False
        """True if it was when this last looked."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.try_to_look()

    async def try_to_look(self) -> None:
        """Look, and note whether the database was there."""
        try:
            await self.look()
            self.is_database_away = False
        except Exception as error:  # noqa: BLE001  the next one may find the database there again
            self.is_database_away = isinstance(error, (DatabaseError, *OUTAGES))
            _log.warning("open requests were not looked after; retrying: %s", error)

    async def look(self) -> None:
        """Look after all requests that were admitted by an older catalogue than there is now; what
        ran of those that end is charged, as if their clients had left."""
        edition = await self._catalogue.current()
        requests = [
            each for each in self._open_requests.all() if each.catalogue_version != edition.version
        ]
        key_ids = {each.principal.key_id for each in requests}
        found = await asyncio.gather(*(edition.key(key_id) for key_id in key_ids))
        keys = dict(zip(key_ids, found, strict=True))
        for request in requests:
            key_id = request.principal.key_id
            key = keys[key_id]
            ended_by = KeyRevoked(f"The API key {key_id} is gone.") if key is None else key.ended_by
            if ended_by is not None:
                request.use.break_off(ended_by)
            request.catalogue_version = edition.version
