"""A whole deployment whose parts can be killed: PostgreSQL, Valkey, a worker, two gateways."""

import asyncio
import json
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import msgspec
import psycopg
from tests.crash import points
from tests.crash.starts import Start
from tests.services.child import Folder
from tests.services.postgres import Postgres, running_postgres
from tests.services.valkey import Valkey, running_valkey

from loraplex.tenants import api_keys, directory, prices
from loraplex.tenants.audit import PLATFORM, Act
from loraplex.tenants.db import Database, migrate
from loraplex.tenants.limit_policies import policy_id
from loraplex.tenants.limits import TenantLimits
from loraplex.tenants.prices import TokenPrices
from loraplex.tenants.quota_tables import LimitPolicy
from loraplex.tenants.secret import confirm_secret

ROOT = Path(__file__).parent.parent.parent
SECRET = "s" * 40
LEASE_S = 1
PATIENCE_S = 60.0
_POLL_S = 0.02
ENOUGH = 1_000_000_000
PRICE = TokenPrices(prompt_micros=3_000_000, cached_micros=1_000_000, completion_micros=7_000_000)
"""Another prime for each kind: a cost tells what was counted."""


@dataclass
class Child:
    """A process that the forge made."""

    pid: int
    log: Path
    descriptor: int = field(init=False)

    def __post_init__(self) -> None:
        self.descriptor = os.pidfd_open(self.pid)

    def is_over(self, wait_s: float = 0.0) -> bool:
        """True if it has ended, or does within this time."""
        ended, _, _ = select.select([self.descriptor], [], [], wait_s)
        return bool(ended)

    def end(self, number: int = signal.SIGKILL, wait_s: float = PATIENCE_S) -> None:
        """Send it a signal, and return when it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, number)
        assert self.is_over(wait_s), self.log.read_text()[-2000:]


@dataclass
class Gateway:
    """One gateway, under whichever process id."""

    child: Child
    port: int


class Site:
    """The deployment. Whatever was killed is started again by `mend`."""

    def __init__(self, folder: Path, postgres: Postgres, valkey: Valkey) -> None:
        self.folder = folder
        self.postgres = postgres
        self.valkey = valkey
        self.database = postgres.create_database()
        self.key = ""
        self.tenant_id = ""
        self._forge: subprocess.Popen[bytes] | None = None
        self._epochs = iter(range(1_000_000))
        self.worker: Child | None = None
        self.gateways: list[Gateway | None] = [None, None]

    @property
    def journal(self) -> Path:
        """Folder of the worker's journal."""
        return self.folder / "journal"

    def start(self) -> None:
        """Make a tenant and start all."""
        self._forge = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.forge"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | self._environment(),
        )
        asyncio.run(self._fill())
        assert self._forge.stdout is not None
        assert self._forge.stdout.readline() == b"ready\n"
        self.mend()

    def stop(self) -> None:
        """End all that the forge made, with it."""
        if self._forge is not None:
            assert self._forge.stdin is not None
            assert self._forge.stdout is not None
            self._forge.stdin.close()
            self._forge.wait(PATIENCE_S)
            self._forge.stdout.close()

    def mend(self, dies_at: str = "", number: int = 1) -> None:
        """Start what does not run; the first gateway or the worker, whichever has it, with a point
        at which it dies."""
        in_worker = dies_at in points.WORKER
        if self.worker is None or self.worker.is_over() or in_worker:
            if self.worker is not None:
                self.worker.end()
            point = (dies_at, number) if in_worker else ("", 1)
            self.worker = self._start_worker(*point)
        for index, gateway in enumerate(self.gateways):
            dies = bool(dies_at) and not in_worker and index == 0
            if gateway is None or gateway.child.is_over() or dies:
                if gateway is not None:
                    gateway.child.end()
                point = (dies_at, number) if dies else ("", 1)
                self.gateways[index] = self._start_gateway(*point)
        for gateway in self.gateways:
            assert gateway is not None
            self._until(lambda port=gateway.port: _is_ready(port), gateway.child)

    def gateway(self, index: int) -> Gateway:
        """One that runs."""
        gateway = self.gateways[index]
        assert gateway is not None
        return gateway

    def settled(self) -> None:
        """Return when no intent is left."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with suppress(psycopg.OperationalError):
                ((number,),) = self.rows("SELECT count(*) FROM usage_intent")
                if not number:
                    return
            assert time.monotonic() < deadline, f"{number} intents are left"
            time.sleep(_POLL_S)

    def verified(self) -> dict[str, Any]:
        """What `loraplex quota verify --json` says, once it says that all agree."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            log = self.folder / f"verify-{next(self._epochs)}"
            child = self._make("quota", "verify", "--json", log=log)
            assert child.is_over(PATIENCE_S)
            lines = [line for line in log.read_text().splitlines() if line.startswith("{")]
            said: dict[str, Any] = json.loads(lines[-1]) if lines else {"said": log.read_text()}
            if lines and not any(
                said[name] for name in ("open_intents", "reserved", "unsettled", "drift")
            ):
                return said
            assert time.monotonic() < deadline, said
            time.sleep(_POLL_S)

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """What the database says."""
        with self.postgres.connected(self.database) as connection:
            return connection.execute(query, values).fetchall()  # type: ignore[arg-type]  # of tests

    def _start_worker(self, dies_at: str, number: int) -> Child:
        socket = self.folder / "worker.sock"
        log = self.folder / "worker.log"
        arguments = ("simulated-worker", str(socket), str(self.journal))
        return self._make(*arguments, str(next(self._epochs)), log=log, point=(dies_at, number))

    def _start_gateway(self, dies_at: str, number: int) -> Gateway:
        log = self.folder / f"gateway-{next(self._epochs)}.log"
        child = self._make("gateway", "--port", "0", log=log, point=(dies_at, number))
        found: list[str] = []

        def announced() -> bool:
            found[:] = re.findall(r"Gateway on http://[^:]+:(\d+)", log.read_text())
            return bool(found)

        self._until(announced, child)
        return Gateway(child, int(found[0]))

    def _make(self, *arguments: str, log: Path, point: tuple[str, int] = ("", 1)) -> Child:
        assert self._forge is not None
        assert self._forge.stdin is not None
        assert self._forge.stdout is not None
        log.touch()
        asked = Start(arguments=arguments, log=str(log), dies_at=point[0], number=point[1])
        self._forge.stdin.write(msgspec.json.encode(asked) + b"\n")
        self._forge.stdin.flush()
        return Child(int(self._forge.stdout.readline()), log)

    def _until(self, is_so: Any, child: Child) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            assert not child.is_over(), child.log.read_text()[-4000:]
            assert time.monotonic() < deadline, child.log.read_text()[-4000:]
            time.sleep(_POLL_S)

    def _environment(self) -> dict[str, str]:
        return {
            "LORAPLEX_DATA_DIR": str(self.folder / "data"),
            "LORAPLEX_DATABASE_URL": self.postgres.url(self.database),
            "LORAPLEX_REDIS_URL": self.valkey.url,
            "LORAPLEX_WORKER_ADDRESS": f"unix:{self.folder / 'worker.sock'}",
            "LORAPLEX_SECRET": SECRET,
            "LORAPLEX_INTENT_LEASE_S": str(LEASE_S),
            "LORAPLEX_DRAIN_TIMEOUT_S": "5",
        }

    async def _fill(self) -> None:
        """One tenant with budgets that are never reached, and a price."""
        database, now = Database.open(self.postgres.url(self.database)), datetime.now(UTC)
        secret = SECRET.encode()
        try:
            await migrate(database)
            async with database.session() as session:
                await confirm_secret(session, secret)
                limits = TenantLimits(ENOUGH, ENOUGH, ENOUGH)
                tenant = await directory.create(
                    session, "acme", now, secrets.token_bytes, limits=limits
                )
                key = await api_keys.mint(session, tenant, "", secret, now, secrets.token_bytes)
                await prices.set_price(
                    session, "EUR", PRICE, now, Act(PLATFORM, now), secrets.token_bytes
                )
                for dimension in ("tokens_per_month", "cost_micros_per_month"):
                    scope = (tenant.id, "tenant", tenant.id, dimension)
                    session.add(
                        LimitPolicy(
                            id=policy_id(*scope),
                            tenant_id=tenant.id,
                            scope="tenant",
                            scope_id=tenant.id,
                            dimension=dimension,
                            value=10**12,
                            mode="enforce",
                            updated_at=now,
                        )
                    )
            self.key, self.tenant_id = key.text, tenant.id
        finally:
            await database.close()


@contextmanager
def running_site() -> Iterator[Site]:
    """A deployment until the end of the block."""
    folder = Folder("lxcr")
    with running_postgres() as postgres, running_valkey() as valkey:
        site = Site(folder.path, postgres, valkey)
        try:
            site.start()
            yield site
        finally:
            site.stop()
            folder.remove()


def _is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False
