"""Forgets daily what is over; each gateway does, and whoever comes second finds nothing left."""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

from loraplex.tenants.db import Database
from loraplex.tenants.retention import forget

_log = logging.getLogger(__name__)

EVERY_S = 86_400.0
FIRST_AFTER_S = 600.0
"""Not while a gateway starts."""


async def keep_forgetting(
    database: Database, usage_days: int | None, now: Callable[[], datetime]
) -> None:
    """Forget daily, until cancelled."""
    wait_s = FIRST_AFTER_S
    while True:
        await asyncio.sleep(wait_s)
        wait_s = EVERY_S
        try:
            gone = await forget(database, now(), usage_days)
        except Exception:  # noqa: BLE001  tomorrow's may find the database there again
            _log.exception("what is over was not removed from the database; retrying tomorrow")
            continue
        if gone.usage:
            _log.info("removed %d rows of usage older than %s days", gone.usage, usage_days)
