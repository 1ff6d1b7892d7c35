"""What requests are admitted by, in memory, as long as nothing of it changes.

One number in the database grows with each change of tenants, projects, keys, limits, prices,
adapters and aliases. Each admission reads it after the request has come; while it is what it was,
so is all that was read before. So a change holds at the next request on every gateway, and an
admission costs one read of a row. What depends on the clock is no part of it: a key's expiry, the
price of a time, the month of a budget are found anew for each request.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from loraplex.adapters.registry import resolution
from loraplex.adapters.registry.resolution import Meaning
from loraplex.platform.recent import Recent
from loraplex.tenants import applied_limits, prices, stored_keys
from loraplex.tenants.api_keys import Principal
from loraplex.tenants.applied_limits import Policy
from loraplex.tenants.db import Database
from loraplex.tenants.limits import Limits
from loraplex.tenants.prices import Price
from loraplex.tenants.scoped_limits import ScopedLimit
from loraplex.tenants.stored_keys import StoredKey
from loraplex.tenants.together import Together

MAX_KEYS = 16_384
MAX_UNKNOWN_KEYS = 4096
"""Apart from those that there are, which nobody pushes out by making up others."""
MAX_MEANINGS = 16_384
MAX_POLICIES = 16_384


class Catalogue:
    """One gateway's copy."""

    def __init__(self, database: Database, defaults: Limits) -> None:
        """`defaults` are the limits of tenants that have none of their own."""
        self._database = database
        self._defaults = defaults
        self._edition: Edition | None = None

    async def current(self) -> "Edition":
        """Return what holds now, that is not before this was called. Raises DatabaseUnusable."""
        version = await self._database.catalogue_version()
        if self._edition is None or self._edition.version != version:
            # Another one, never this one emptied: whoever still reads for the old one puts what
            # may be old there.
            self._edition = Edition(self._database, version, self._defaults)
        return self._edition


@dataclass(frozen=True, slots=True)
class _Policies:
    """Never None, as `Recent` asks for."""

    of: tuple[Policy, ...]


class Edition:
    """The catalogue as of a version, or later; read as it is needed.

    Each method raises what the database does.
    """

    def __init__(self, database: Database, version: int, defaults: Limits) -> None:
        self.version = version
        self._database = database
        self._defaults = defaults
        self._keys: Recent[str, StoredKey] = Recent(MAX_KEYS)
        self._unknown_keys: Recent[str, str] = Recent(MAX_UNKNOWN_KEYS)
        self._key_lookups = Together(self._find_keys)
        self._meanings: Recent[tuple[str, str, str], Meaning] = Recent(MAX_MEANINGS)
        self._policies: Recent[tuple[str, str | None], _Policies] = Recent(MAX_POLICIES)
        self._prices: list[Price] | None = None

    async def key(self, key_id: str) -> StoredKey | None:
        """Return what is stored of a key; None if there is none of this id."""
        known = self._keys.get(key_id)
        if known is not None or self._unknown_keys.get(key_id) is not None:
            return known
        # One query for all that are asked for meanwhile: made-up keys cost no more than that.
        found = await self._key_lookups.get(key_id)
        if found is None:
            self._unknown_keys.put(key_id, key_id)
        else:
            self._keys.put(key_id, found)
        return found

    async def meaning(self, tenant_id: str, model: str, base_model: str) -> Meaning:
        """Return what a name means for a tenant. Raises ModelNotFound, each time anew: names that
        somebody makes up are not kept."""
        name = (tenant_id, model, base_model)
        known = self._meanings.get(name)
        if known is None:
            async with self._database.reader() as session:
                known = await resolution.find(session, *name)
            self._meanings.put(name, known)
        return known

    async def limits(
        self, principal: Principal, adapter: str | None, at: datetime
    ) -> tuple[ScopedLimit, ...]:
        """Return what a request is limited by that comes now: on an adapter of this name, or None
        for the base model; see `applied_limits.limits_of`."""
        known = self._policies.get((principal.key_id, adapter))
        if known is None:
            async with self._database.reader() as session:
                known = _Policies(
                    await applied_limits.policies_of(
                        session,
                        principal.tenant_id,
                        principal.project_id,
                        principal.key_id,
                        adapter,
                    )
                )
            self._policies.put((principal.key_id, adapter), known)
        return applied_limits.limits_of(
            known.of, self._defaults, principal.tenant_id, principal.calendar, at
        )

    async def price(self, at: datetime) -> Price | None:
        """Return the price that holds at a time."""
        if self._prices is None:
            async with self._database.reader() as session:
                self._prices = await prices.list_prices(session)
        return next((price for price in self._prices if price.valid_from <= at), None)

    async def _find_keys(self, key_ids: Collection[str]) -> Mapping[str, StoredKey]:
        async with self._database.reader() as session:
            return await stored_keys.find_keys(session, key_ids)
