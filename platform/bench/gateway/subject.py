"""The gateway under test and the worker behind it, each in a process of its own."""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from loraplex.adapters.registry.registry import Publication, publish
from loraplex.platform.bench.errors import BenchFailed
from loraplex.platform.bench.gateway.http_load import Server
from loraplex.platform.bench.gateway.scripted import MODEL
from loraplex.tenants import api_keys, directory, prices
from loraplex.tenants.audit import PLATFORM, Act
from loraplex.tenants.db import Database, migrate
from loraplex.tenants.limits import TenantLimits
from loraplex.tenants.prices import TokenPrices
from loraplex.tenants.secret import confirm_secret, load_secret

NUM_ADAPTERS = 16
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
_POLL_S = 0.05
_ENOUGH = 1_000_000_000
_CPUCLOCK_SCHED = 2
"""Of the clocks by which Linux tells a process's processor time, the scheduler's."""
_PYTHON = (sys.executable, "-m")


@dataclass(frozen=True, slots=True)
class Stores:
    """Where the gateway keeps its state."""

    database_url: str | None = None
    """None makes an SQLite file."""
    redis_url: str | None = None
    """None counts in the gateway."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A running gateway with one tenant."""

    server: Server
    models: tuple[str, ...]
    """The tenant's adapters, by name."""
    pid: int

    def cpu_s(self) -> float:
        """Processor time of the gateway so far, of all its threads."""
        return time.clock_gettime((~self.pid << 3) | _CPUCLOCK_SCHED)


@asynccontextmanager
async def running_gateway(stores: Stores) -> AsyncIterator[Subject]:
    """Start both, the gateway on a core of its own where there are several, and make a tenant.

    Raises BenchFailed if one of them does not start, and what opening the database raises.
    """
    with tempfile.TemporaryDirectory(prefix="lxbg") as name:
        folder = Path(name)
        url = stores.database_url or f"sqlite+aiosqlite:///{folder / 'bench.db'}"
        key, models = await _make_tenant(url, folder)
        socket, log = folder / "worker", folder / "gateway.log"
        options = ["--data-dir", str(folder), "--port", "0", "--database-url", url]
        options += ["--worker-address", f"unix:{socket}"]
        if stores.redis_url is not None:
            options += ["--redis-url", stores.redis_url]
        scripted = ["loraplex.platform.bench.gateway.scripted", str(socket)]
        with (
            _child(scripted, folder / "worker.log") as worker,
            _child(["loraplex.platform.cli.main", "gateway", *options], log) as gateway,
        ):
            address = await asyncio.to_thread(_until_ready, gateway, log)
            with _on_one_core(gateway.pid, others=(worker.pid, os.getpid())):
                yield Subject(Server(address, key), models, gateway.pid)


async def _make_tenant(database_url: str, folder: Path) -> tuple[str, tuple[str, ...]]:
    """A tenant whose limits are never reached, with adapters and a price: its key, its models."""
    database = Database.open(database_url)
    secret, now = load_secret(folder), datetime.now(UTC)
    try:
        await migrate(database)
        async with database.session() as session:
            await confirm_secret(session, secret)
            limits = TenantLimits(_ENOUGH, _ENOUGH, _ENOUGH)
            name = f"bench-{secrets.token_hex(6)}"
            tenant = await directory.create(session, name, now, secrets.token_bytes, limits=limits)
            key = await api_keys.mint(session, tenant, "bench", secret, now, secrets.token_bytes)
            costs = TokenPrices(prompt_micros=150_000, cached_micros=75_000, completion_micros=1)
            await prices.set_price(
                session, "EUR", costs, now, Act(PLATFORM, now), secrets.token_bytes
            )
            for number in range(NUM_ADAPTERS):
                digest = f"sha256:{number:064x}"
                publication = Publication(f"adapter-{number}", digest, 8, 1000, MODEL)
                await publish(session, tenant.id, publication, now)
    finally:
        await database.close()
    return key.text, tuple(f"{name}/adapter-{number}" for number in range(NUM_ADAPTERS))


@contextmanager
def _child(module: Sequence[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a module in a process that ends with the block; what it says goes to a file."""
    environment = os.environ | {"LORAPLEX_LOG_LEVEL": "info"}
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603  our own modules
            [*_PYTHON, *module],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=environment,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=STOP_TIMEOUT_S)


def _until_ready(gateway: "subprocess.Popen[bytes]", log: Path) -> str:
    """Wait until the gateway takes requests; its address."""
    announced = "Gateway on "
    until_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until_s and gateway.poll() is None:
        lines = log.read_text(errors="replace").splitlines()
        address = next((line.removeprefix(announced) for line in lines if announced in line), None)
        if address is not None and _is_ready(address):
            return address
        time.sleep(_POLL_S)
    raise BenchFailed(f"the gateway did not start: {log.read_text(errors='replace')[-1000:]}")


def _is_ready(address: str) -> bool:
    try:
        with urlopen(f"{address}/readyz", timeout=5) as answer:  # noqa: S310  our own address
            return answer.status == 200 and isinstance(json.load(answer), dict)
    except URLError:
        return False


@contextmanager
def _on_one_core(pid: int, others: Sequence[int]) -> Iterator[None]:
    """Keep all threads of a process on one core, and other processes off it."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        _place(pid, cores[:1])
        for other in others:
            _place(other, cores[1:])
    try:
        yield
    finally:
        _place(os.getpid(), cores)


def _place(pid: int, cores: Sequence[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)
