"""Whose word of a client's address is believed, and what is judged by it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from sqlalchemy import update
from tests.platform.conftest import make_tenant

from loraplex.platform.app import create_app
from loraplex.platform.gateway import GatewayServer
from loraplex.platform.services import Resources
from loraplex.platform.settings import Settings
from loraplex.tenants.tables import ApiKey

OFFICE = "203.0.113.7"


async def ask(resources: Resources, trusted: str | None, peer: str, forwarded: str) -> int:
    """The status of a request of a key that is for the office's network alone."""
    settings = resources.settings.model_copy(update={"trusted_proxies": trusted})
    resources = replace(resources, settings=settings)
    app = create_app(resources)
    _, key = await make_tenant(resources, "acme")
    async with resources.database.session() as session:
        await session.execute(update(ApiKey).values(addresses='["203.0.113.0/24"]'))
    transport = httpx.ASGITransport(app, client=(peer, 4711))
    headers = {"authorization": f"Bearer {key}", "x-forwarded-for": forwarded}
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        return (await client.get("/v1/models", headers=headers)).status_code


@pytest.mark.parametrize(
    ("trusted", "peer", "forwarded", "status"),
    [
        (None, "127.0.0.1", OFFICE, 403),
        ("127.0.0.1/32", "127.0.0.1", OFFICE, 200),
        ("10.0.0.0/8, 127.0.0.1", "10.9.8.7", OFFICE, 200),
        ("10.0.0.0/8", "10.9.8.7", f"{OFFICE}, 10.1.1.1", 200),
        ("10.0.0.0/8", "10.9.8.7", f"{OFFICE}, 198.51.100.1", 403),
        ("10.0.0.0/8", "10.9.8.7", "unknown", 403),
        ("10.0.0.0/8", "198.51.100.1", OFFICE, 403),
        ("2001:db8::/32", "2001:db8::1", OFFICE, 200),
    ],
)
async def test_only_proxies_that_are_named_tell_where_a_request_comes_from(
    resources: Resources, trusted: str | None, peer: str, forwarded: str, status: int
) -> None:
    assert await ask(resources, trusted, peer, forwarded) == status


@asynccontextmanager
async def serving(resources: Resources) -> AsyncIterator[str]:
    """The gateway's own server; the address of its root."""
    server = GatewayServer(resources, socket.create_server(("127.0.0.1", 0)))
    started = asyncio.Event()
    running = asyncio.create_task(server.serve_until_signalled(started.set))
    await started.wait()
    try:
        yield server.url
    finally:
        server.should_exit = True
        await running


async def test_the_gateways_own_server_believes_nobody_by_itself(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    _, key = await make_tenant(resources, "acme")
    async with resources.database.session() as session:
        await session.execute(update(ApiKey).values(addresses='["203.0.113.0/24"]'))
    headers = {"authorization": f"Bearer {key}", "x-forwarded-for": OFFICE}
    async with serving(resources) as url, httpx.AsyncClient() as client:
        assert (await client.get(f"{url}/v1/models", headers=headers)).status_code == 403


def test_proxies_that_are_no_networks_are_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="host bits"):
        Settings(data_dir=tmp_path, trusted_proxies="10.0.0.0/8, 10.1.1.1/8")
    with pytest.raises(ValueError, match="'\\*'"):
        Settings(data_dir=tmp_path, trusted_proxies="*")
