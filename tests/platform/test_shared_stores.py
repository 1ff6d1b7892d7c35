"""Gateways as processes over PostgreSQL and Valkey, with a worker whose model is simulated."""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.engine.simulated_worker import running
from tests.platform.conftest import NOW, chat_body, error_of
from tests.platform.tiny_model import model_info
from tests.services.postgres import Postgres, running_postgres
from tests.services.valkey import Valkey, running_valkey

from loraplex.engine.frames import UnixAddress
from loraplex.tenants import api_keys, directory
from loraplex.tenants.db import Database, migrate
from loraplex.tenants.ledger import list_usage
from loraplex.tenants.limits import TenantLimits
from loraplex.tenants.secret import load_secret

LORAPLEX = (sys.executable, "-m", "loraplex.platform.cli.main")


@dataclass(frozen=True, slots=True)
class Deployment:
    """Both stores, one worker, and how gateways are started on them."""

    data_dir: Path
    database: Database
    redis_url: str
    worker: Path

    @property
    def options(self) -> tuple[str, ...]:
        return (
            *("--data-dir", str(self.data_dir), "--worker-address", f"unix:{self.worker}"),
            *("--database-url", self.database.url.render_as_string(hide_password=False)),
            *("--redis-url", self.redis_url, "--port", "0"),
        )

    async def make_key(self, name: str, **limits: int) -> str:
        pepper = load_secret(self.data_dir)
        async with self.database.session() as session:
            tenant = await directory.create(
                session, name, NOW, secrets.token_bytes, limits=TenantLimits(**limits)
            )
            made = await api_keys.mint(session, tenant, "", pepper, NOW, secrets.token_bytes)
        return made.text

    async def num_usage(self, name: str) -> int:
        async with self.database.reader() as session:
            tenant = await directory.get_by_name(session, name)
            return len(await list_usage(session, tenant.id))

    @asynccontextmanager
    async def gateway(self, key: str) -> AsyncIterator[httpx.AsyncClient]:
        """A gateway's process, and a client of it that has the key."""
        process = await asyncio.create_subprocess_exec(
            *LORAPLEX, "gateway", *self.options, stderr=asyncio.subprocess.PIPE
        )
        assert process.stderr is not None
        try:
            url = await announced(process.stderr)
            headers = {"authorization": f"Bearer {key}"}
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as client:
                while (await client.get("/readyz")).status_code != 200:
                    pass  # The gateway connects to the worker while it serves.
                yield client
        finally:
            process.terminate()
            await process.communicate()


async def announced(lines: asyncio.StreamReader) -> str:
    """The address that a gateway tells on its standard error, among its log's lines."""
    said = []
    async for line in lines:
        said.append(line.decode())
        if line.startswith(b"Gateway on "):
            return line.decode().removeprefix("Gateway on ").strip()
    raise AssertionError(f"the gateway did not start: {''.join(said)}")


async def chat(client: httpx.AsyncClient) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=chat_body(max_tokens=4))


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def own_valkey() -> Iterator[Valkey]:
    with running_valkey() as server:
        yield server


@pytest.fixture
async def deployment(
    own_postgres: Postgres, own_valkey: Valkey, tmp_path: Path
) -> AsyncIterator[Deployment]:
    database = Database.open(own_postgres.url(own_postgres.create_database()))
    await migrate(database)
    socket = own_valkey.folder.path / "worker.sock"
    async with running(UnixAddress(socket), model=model_info()) as worker:
        worker.runner.open()
        yield Deployment(tmp_path, database, own_valkey.url, socket)
    await database.close()


async def test_gateways_share_the_limits_of_a_tenant_and_its_ledger(deployment: Deployment) -> None:
    key = await deployment.make_key("acme", requests_per_minute=5)
    async with deployment.gateway(key) as first, deployment.gateway(key) as second:
        for client in (first, second, first, second, first):
            assert (await chat(client)).status_code == 200
        for client in (first, second):
            refused = await chat(client)
            assert (refused.status_code, error_of(refused)["code"]) == (429, "rate_limit_exceeded")
            assert 0 < int(refused.headers["retry-after"]) <= 12
    assert await deployment.num_usage("acme") == 5


async def test_while_a_store_is_away_requests_get_503_and_then_work_again(
    deployment: Deployment, own_postgres: Postgres, own_valkey: Valkey
) -> None:
    key = await deployment.make_key("acme")
    async with deployment.gateway(key) as client:
        for store, code in (
            (own_valkey, "quota_backend_unavailable"),
            (own_postgres, "database_unavailable"),
        ):
            assert (await chat(client)).status_code == 200
            store.kill()
            refused = await chat(client)
            assert (refused.status_code, error_of(refused)["code"]) == (503, code)
            assert refused.headers["retry-after"] == "1"
            store.start()
        assert (await chat(client)).status_code == 200


@pytest.mark.parametrize(
    ("command", "option", "url", "reason"),
    [
        ("gateway", "--redis-url", "redis://:hunter2@127.0.0.1:1/0", "redis://127.0.0.1:1/0"),
        ("serve", "--database-url", "postgresql+psycopg://u:hunter2@127.0.0.1:1/d", "u:***@127"),
    ],
)
async def test_a_start_without_a_store_says_why_in_a_line(
    tmp_path: Path, command: str, option: str, url: str, reason: str
) -> None:
    model = ("--model", "elsewhere") if command == "serve" else ()
    process = await asyncio.create_subprocess_exec(
        *(*LORAPLEX, command, "--data-dir", str(tmp_path), "--port", "0", option, url, *model),
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    *_, line = said.decode().splitlines()
    assert process.returncode == 1
    assert line.startswith("error: The ")
    assert reason in line
    assert b"hunter2" not in said
    assert b"Traceback" not in said
