"""A registry with two tenants, for the tests of what is done in it."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from loraplex.adapters.registry import (
    aliases,
    byte_claims,
    gateways,
    life_cycle,
    registry,
    resolution,
)
from loraplex.adapters.registry.aliases import Alias, Canary
from loraplex.adapters.registry.byte_claims import Claim
from loraplex.adapters.registry.errors import BytesLeaving
from loraplex.adapters.registry.names import AdapterName
from loraplex.adapters.registry.registry import Publication, PublishedVersion
from loraplex.adapters.registry.resolution import ResolvedModel
from loraplex.tenants import audit, directory
from loraplex.tenants.audit import Act, Actor, AuditFilter, AuditRecord
from loraplex.tenants.db import Database
from loraplex.tenants.directory import TenantChange

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
BASE = "tiny-base"
ME = Act(Actor("api_key", "key_me"), NOW)


@dataclass(frozen=True, slots=True)
class Shop:
    """A registry with two tenants, and a store that is a set of digests."""

    database: Database
    acme: str
    other: str
    stored: set[str] = field(default_factory=set)
    removed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no bytes are being removed."""

    @property
    def support(self) -> AdapterName:
        return AdapterName(self.acme, "support")

    async def publish(
        self, digest: str, name: str = "support", tenant: str = "", base: str = BASE
    ) -> PublishedVersion:
        publication = Publication(name, digest, rank=8, num_bytes=1024, base_model=base)
        return await self.publish_as(publication, tenant)

    async def publish_as(self, publication: Publication, tenant: str = "") -> PublishedVersion:
        claim = await self.keep(publication.digest)
        try:
            async with self.database.session() as session:
                return await registry.publish(
                    session, tenant or self.acme, publication, NOW, ME.actor, claim
                )
        except Exception:
            async with self.database.session() as session:
                await byte_claims.give_up(session, claim)
            raise

    async def keep(self, digest: str, now: datetime = NOW) -> Claim:
        """Put bytes into the store under a claim, as soon as nobody removes them."""
        while True:
            try:
                async with self.database.session() as session:
                    claim = await byte_claims.begin_keep(session, digest, now)
            except BytesLeaving:
                await self.removed.wait()
                continue
            await asyncio.sleep(0)  # while others act, as long as this takes
            self.stored.add(digest)
            return claim

    async def resolve(
        self, model: str, tenant: str = "", base: str = BASE, sticky: str | None = None
    ) -> ResolvedModel:
        async with self.database.reader() as session:
            return await resolution.resolve(session, tenant or self.acme, model, base, sticky)

    async def act(self, change: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        """Do something to the adapter `support`, in a transaction of its own."""
        async with self.database.session() as session:
            return await change(session, ME, self.support, *args, **options)

    async def point(self, alias: str, version: int, expected: int | None = None) -> Alias:
        return await self.act(aliases.point, alias, version, expected)

    async def canary(self, alias: str, version: int, percent: int) -> Alias:
        return await self.act(aliases.set_canary, alias, Canary(version, percent))

    async def version(self, number: int) -> PublishedVersion:
        async with self.database.reader() as session:
            return await registry.get_version(session, self.support, number)

    async def limit(self, **limits: int) -> None:
        async with self.database.session() as session:
            change = TenantChange(adapters=limits)
            await directory.change(session, ME, self.acme, change)

    async def remove(self, removal: Claim) -> None:
        """Remove claimed bytes from the store."""
        self.removed.clear()
        await asyncio.sleep(0)  # while others act, as long as this takes
        self.stored.discard(removal.digest)
        async with self.database.session() as session:
            await byte_claims.give_up(session, removal)
        self.removed.set()

    async def say(self, gateway: str, *cleared: str, at: datetime = NOW) -> None:
        """Let a gateway say that it runs and what it has cleared."""
        async with self.database.session() as session:
            await gateways.say(session, gateway, at, cleared)

    async def finish_all(self, now: datetime = NOW) -> list[str]:
        """Finish the deletions that can be; return what they were of."""
        async with self.database.reader() as session:
            deletions = await life_cycle.list_deletions(session)
        done = []
        for deletion in deletions:
            async with self.database.session() as session:
                finished = await life_cycle.finish(session, deletion, now)
            if finished is not None:
                done.append(deletion.model)
                if finished.removal is not None:
                    await self.remove(finished.removal)
        return done

    async def events(self) -> list[AuditRecord]:
        """What was told of it, oldest first."""
        async with self.database.reader() as session:
            events = await audit.find_events(session, AuditFilter(tenant_id=self.acme), 1000)
        return events[::-1]

    async def actions(self) -> list[str]:
        return [event.action for event in await self.events()]


@asynccontextmanager
async def open_shop(database_url: str) -> AsyncIterator[Shop]:
    database = Database.open(database_url)
    async with database.session() as session:
        acme = await directory.create(session, "acme", NOW, secrets.token_bytes)
        other = await directory.create(session, "other", NOW, secrets.token_bytes)
    yield Shop(database, acme.id, other.id)
    await database.close()


LONG_AGO = NOW - 10 * gateways.LEASE
SOON = timedelta(seconds=1)
