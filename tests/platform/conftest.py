"""A gateway over a scripted engine and a real database, for the tests of this folder."""

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from tests.platform.scripted_engine import ScriptedEngine, says
from tests.platform.tiny_model import model_info

from loraplex.adapters.registry.registry import Publication, publish
from loraplex.platform.app import create_app
from loraplex.platform.services import Resources, Services
from loraplex.platform.settings import Settings
from loraplex.tenants import admin_keys, api_keys, directory
from loraplex.tenants.db import Database
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.ledger import UsageRecord, list_usage
from loraplex.tenants.limit_policies import policy_id
from loraplex.tenants.quota_tables import LimitPolicy
from loraplex.tenants.quotas_memory import MemoryQuotas
from loraplex.tenants.scoped_limits import Dimension, Scope

PEPPER = b"p" * 32
NOW = datetime(2026, 11, 30, tzinfo=UTC)


@dataclass
class Gateway:
    """A gateway in this process; `client` is without a socket and sends `key`."""

    app: FastAPI
    engine: ScriptedEngine
    resources: Resources
    tenant: TenantRecord
    key: str
    client: httpx.AsyncClient

    @property
    def services(self) -> Services:
        services = self.app.state.services
        assert isinstance(services, Services)
        return services

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    async def chat(self, **fields: object) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json=chat_body(**fields))

    async def complete(self, **fields: object) -> httpx.Response:
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 8} | fields
        return await self.client.post("/v1/completions", json=body)

    async def usage(self) -> list[UsageRecord]:
        async with self.resources.database.reader() as session:
            return await list_usage(session, self.tenant.id)

    async def assert_all_settled(self) -> None:
        """No request is open and no hold is left."""
        await self.services.open_requests.drain(10)
        assert len(self.services.open_requests) == 0
        in_use = await self.resources.quotas.in_use(self.tenant.id)
        assert (in_use.requests, in_use.tokens) == (0, 0)
        await self.resources.quotas.check()

    async def make_tenant(self, name: str, **limits: int) -> tuple[TenantRecord, str]:
        return await make_tenant(self.resources, name, **limits)

    async def put_limit(
        self,
        scope: Scope,
        dimension: Dimension,
        value: int,
        *,
        adapter: str = "",
        key: str | None = None,
        **fields: object,
    ) -> None:
        """Store a limit of a key, its project or tenant, or of an adapter."""
        edition = await self.services.catalogue.current()
        stored = await edition.key((key or self.key).split("_")[1])
        assert stored is not None
        owner = stored.principal
        ids = {"tenant": owner.tenant_id, "project": owner.project_id, "key": owner.key_id}
        scope_id = ids.get(scope, adapter)
        row = LimitPolicy(
            id=policy_id(owner.tenant_id, scope, scope_id, dimension),
            tenant_id=owner.tenant_id,
            scope=scope,
            scope_id=scope_id,
            dimension=dimension,
            value=value,
            updated_at=NOW,
            **({"mode": "enforce"} | fields),
        )
        async with self.resources.database.session() as session:
            session.add(row)

    async def publish(self, name: str, digest: str, tenant: TenantRecord | None = None) -> None:
        publication = Publication(name, digest, 8, 1000, "tiny")
        async with self.resources.database.session() as session:
            await publish(session, (tenant or self.tenant).id, publication, NOW)


def chat_body(**fields: object) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hello"}]
    return {"model": "tiny", "messages": messages, "max_tokens": 8} | fields


def error_of(response: httpx.Response) -> dict[str, Any]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    return error


async def make_tenant(resources: Resources, name: str, **limits: int) -> tuple[TenantRecord, str]:
    async with resources.database.session() as session:
        own = directory.TenantLimits(**limits)
        tenant = await directory.create(session, name, NOW, secrets.token_bytes, limits=own)
        key = await api_keys.mint(session, tenant, "test", PEPPER, NOW, secrets.token_bytes)
    return tenant, key.text


@pytest.fixture
def gateway_database_url(sqlite_url: str) -> str:
    """The gateway's database; tests that are about the database put `database_url` in its place."""
    return sqlite_url


@pytest.fixture
def settings(tmp_path: Path, gateway_database_url: str) -> Settings:
    return Settings(
        data_dir=tmp_path,
        database_url=gateway_database_url,
        max_body_bytes=100_000,
        drain_timeout_s=5,
        requests_per_minute=10_000,
        tokens_per_minute=1_000_000,
        concurrency=1000,
    )


@pytest.fixture
async def resources(settings: Settings) -> AsyncIterator[Resources]:
    database = Database.open(settings.resolved_database_url)
    engine = ScriptedEngine(model_info())
    engine.answer = says("Hel", "lo", "!")
    yield Resources(
        settings=settings,
        database=database,
        quotas=MemoryQuotas(time.monotonic_ns),
        engine=engine,
        pepper=PEPPER,
        clock=NOW.timestamp,
        entropy=secrets.token_bytes,
        registry=CollectorRegistry(),
    )
    await database.close()


@pytest.fixture
async def gateway(resources: Resources) -> AsyncIterator[Gateway]:
    tenant, key = await make_tenant(resources, "acme")
    app = create_app(resources)
    engine = resources.engine
    assert isinstance(engine, ScriptedEngine)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://gateway",
            headers={"authorization": f"Bearer {key}"},
        ) as client,
    ):
        yield Gateway(app, engine, resources, tenant, key, client)


@pytest.fixture
async def server(gateway: Gateway) -> AsyncIterator[str]:
    """The gateway on a socket, with the server that production has; the address of its root."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        gateway.app,
        http="httptools",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
    )
    running = uvicorn.Server(config)
    serving = asyncio.create_task(running.serve(sockets=[listener]))
    host, port = listener.getsockname()
    yield f"http://{host}:{port}"
    running.should_exit = True
    await serving
    listener.close()


@pytest.fixture
async def admin(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """The operator's client."""
    async with gateway.resources.database.session() as session:
        key = await admin_keys.mint(session, "test", PEPPER, NOW, secrets.token_bytes)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(gateway.app),
        base_url="http://gateway/admin/v1",
        headers={"authorization": f"Bearer {key.text}"},
    ) as client:
        yield client
