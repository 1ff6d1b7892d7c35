"""Gateways as processes over PostgreSQL and Valkey, with a worker whose model is simulated."""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
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
from loraplex.tenants import api_keys, directory, limit_changes
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.db import Database, migrate
from loraplex.tenants.key_scopes import of_platform
from loraplex.tenants.ledger import list_usage
from loraplex.tenants.limit_changes import NewLimit
from loraplex.tenants.limit_parents import LimitOwner
from loraplex.tenants.limits import Limits, TenantLimits
from loraplex.tenants.scoped_limits import Dimension
from loraplex.tenants.secret import load_secret

MAX_TOKENS = 4
BUDGET = 300
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

    async def put_limit(
        self, name: str, dimension: Dimension, value: int, burst: int | None = None
    ) -> None:
        async with self.database.session() as session:
            tenant = await directory.get_by_name(session, name)
            owner = LimitOwner(tenant.id, "tenant", tenant.id)
            grantor, defaults = of_platform(Act(CLI, NOW)), Limits(1, 1, 1)
            await limit_changes.put(
                session, grantor, owner, dimension, NewLimit(value, burst), defaults
            )

    async def tokens_of(self, name: str) -> int:
        async with self.database.reader() as session:
            tenant = await directory.get_by_name(session, name)
            rows = await list_usage(session, tenant.id)
        return sum(row.prompt_tokens + row.completion_tokens for row in rows)

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


async def chat(client: httpx.AsyncClient, key: str | None = None) -> httpx.Response:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    body = chat_body(max_tokens=MAX_TOKENS)
    return await client.post("/v1/chat/completions", json=body, headers=headers)


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


async def test_three_gateways_that_are_asked_at_once_act_as_one(deployment: Deployment) -> None:
    quick = await deployment.make_key("quick")
    await deployment.put_limit("quick", "requests_per_minute", 1, burst=5)
    key = await deployment.make_key("acme")
    await deployment.put_limit("acme", "tokens_per_month", BUDGET)
    async with AsyncExitStack() as stack:
        opened = [stack.enter_async_context(deployment.gateway(key)) for _ in range(3)]
        gateways = await asyncio.gather(*opened)

        rates = await asyncio.gather(*(chat(gateways[i % 3], quick) for i in range(30)))
        assert [reply.status_code for reply in rates].count(200) == 5
        refused = [reply for reply in rates if reply.status_code != 200]
        assert {error_of(reply)["code"] for reply in refused} == {"rate_limit_exceeded"}
        assert all(0 < int(reply.headers["retry-after"]) <= 60 for reply in refused)

        replies = await asyncio.gather(*(chat(gateways[i % 3]) for i in range(90)))
        for gateway in gateways:  # what was refused for what others reserved and did not use
            while (reply := await chat(gateway)).status_code == 200:
                replies.append(reply)
            assert error_of(reply)["code"] == "token_budget_exhausted"
        usages = [reply.json()["usage"] for reply in replies if reply.status_code == 200]
        used = sum(usage["total_tokens"] for usage in usages)
        seen = [(await gateway.get("/v1/limits")).json()["data"] for gateway in gateways]
    assert BUDGET - usages[0]["prompt_tokens"] - MAX_TOKENS < used <= BUDGET
    assert await deployment.tokens_of("acme") == used
    budgets = [next(each for each in one if "month" in each["dimension"]) for one in seen]
    assert [budget["used"] for budget in budgets] == [used] * 3
    assert await deployment.num_usage("quick") == 5


async def test_without_the_quota_store_a_gateway_counts_alone_and_without_the_database_it_refuses(
    deployment: Deployment, own_postgres: Postgres, own_valkey: Valkey
) -> None:
    key = await deployment.make_key("acme")
    async with deployment.gateway(key) as client:
        assert (await chat(client)).status_code == 200
        own_valkey.kill()
        assert (await chat(client)).status_code == 200
        assert "loraplex_quota_store_away 1.0" in (await client.get("/metrics")).text
        own_postgres.kill()
        refused = await chat(client)
        assert (refused.status_code, error_of(refused)["code"]) == (503, "database_unavailable")
        assert refused.headers["retry-after"] == "1"
        assert (await client.get("/readyz")).status_code == 200
        own_postgres.start()
        own_valkey.start()
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
