"""A platform without a server, for the tests of what becomes of a request."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from tests.platform.conftest import chat_body, make_tenant
from tests.platform.scripted_engine import ScriptedEngine

from loraplex.platform.api.bodies import parse
from loraplex.platform.api.chat_schema import ChatBody
from loraplex.platform.completions import Call, CompletionRequest, complete
from loraplex.platform.services import Resources, Services, build_services
from loraplex.tenants.db import Database
from loraplex.tenants.ledger import UsageRecord, list_usage


@dataclass
class Walk:
    """A platform without a server, and one tenant's calls to it."""

    resources: Resources
    services: Services
    tenant_id: str
    key: str
    ids: list[str] = field(default_factory=list)

    @property
    def engine(self) -> ScriptedEngine:
        engine = self.resources.engine
        assert isinstance(engine, ScriptedEngine)
        return engine

    def call(self, key: str | None = None, **fields: object) -> Call:
        async def read() -> CompletionRequest:
            return parse(json.dumps(chat_body(**fields)).encode(), ChatBody).to_request()

        self.ids.append(f"req_{len(self.ids)}")
        return Call(self.ids[-1], key or self.key, read, "127.0.0.1")

    async def run(self, **fields: object) -> list[Any]:
        return [event async for event in complete(self.call(**fields), self.services)]

    async def run_as(self, key: str) -> list[Any]:
        return [event async for event in complete(self.call(key), self.services)]

    async def usage(self) -> list[UsageRecord]:
        async with self.resources.database.reader() as session:
            return await list_usage(session, self.tenant_id)

    async def assert_settled(self) -> None:
        await self.services.open_requests.drain(10)
        assert len(self.services.open_requests) == 0
        in_use = await self.resources.quotas.in_use(self.tenant_id)
        assert (in_use.requests, in_use.tokens) == (0, 0)
        await self.resources.quotas.check()


async def walk_over(resources: Resources, **limits: int) -> Walk:
    tenant, key = await make_tenant(resources, "acme", **limits)
    return Walk(resources, build_services(resources), tenant.id, key)


AWAY = OperationalError("insert", {}, Exception("away"))


class FailingDatabase:
    """A database whose writes fail as long as `error` says with what."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.error: Exception | None = None
        self.num_failures = 0
        self.failed = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncSession]:
        if self.error is not None:
            self.num_failures += 1
            self.failed.set()
            raise self.error
        async with self._database.session() as session:
            yield session

    async def fail_times(self, number: int) -> None:
        """Return when that many writes have failed."""
        while self.num_failures < number:
            self.failed.clear()
            await self.failed.wait()
