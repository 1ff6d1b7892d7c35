"""Tells the worker which adapters to keep in memory, and what of it is which tenant's own.

The database is read every few seconds, so that all gateways, and commands beside them, agree; what
it says goes to the worker when it changes, to each worker that connects, and after each adapter
that the worker is told to drop: that unpins it, and it may be published and pinned again by then.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from msgspec import structs

from loraplex.adapters.registry import pins
from loraplex.engine.client import EngineClient
from loraplex.engine.residency_protocol import Pin, Pins
from loraplex.tenants.db import Database

_log = logging.getLogger(__name__)

POLL_S = 5.0

MAX_PINS = 1024
"""Of all tenants; the worker reads the header of each."""


class AdapterPins:
    """One gateway's part in it."""

    def __init__(
        self, database: Database, engine: EngineClient, clock: Callable[[], float]
    ) -> None:
        """`clock` tells seconds since the epoch."""
        self._database = database
        self._engine = engine
        self._clock = clock
        self._told: Pins | None = None
        self._num_asked = self._num_answered = 0
        """Times that the worker was to be told whether or not something has changed, and was."""
        self._is_asked = asyncio.Event()

    def again(self) -> None:
        """Tell the worker soon, whether or not something has changed."""
        self._num_asked += 1
        self._is_asked.set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.look()
            except Exception:  # noqa: BLE001  the next one may find the database there again
                _log.exception("pins of adapters were not read; retrying")
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._is_asked.wait()
            self._is_asked.clear()

    async def look(self) -> None:
        """Read the database once, and tell the worker if it must, or if something has changed."""
        # Before it is read: whoever reads later knows no less, and what is dropped meanwhile is
        # told after the next look.
        version = int(self._clock() * 1e6)
        num_asked = self._num_asked
        async with self._database.reader() as session:
            pinned = await pins.pinned(session)
            limits = await pins.memory_limits(session)
        if len(pinned) > MAX_PINS:
            _log.warning("of %d pinned adapters the first %d are kept", len(pinned), MAX_PINS)
        told = Pins(
            version=self._told.version if self._told is not None else version,
            pinned=tuple(Pin(pin.tenant_id, pin.digest) for pin in pinned[:MAX_PINS]),
            floors={each.tenant_id: each.floor_bytes for each in limits if each.floor_bytes},
            caps={each.tenant_id: each.cap_bytes for each in limits if each.cap_bytes is not None},
            host_floors={
                each.tenant_id: each.host_floor_bytes for each in limits if each.host_floor_bytes
            },
            host_caps={
                each.tenant_id: each.host_cap_bytes
                for each in limits
                if each.host_cap_bytes is not None
            },
        )
        if num_asked > self._num_answered or told != self._told:
            newest = told.version if self._told is None else max(version, told.version + 1)
            self._told = structs.replace(told, version=newest)
            self._engine.pin(self._told)
            self._num_answered = num_asked
