"""A gateway with its console on a socket, over a scripted engine that takes adapters."""

import asyncio
import secrets
import shutil
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import uvicorn
from argon2 import PasswordHasher
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from tests.adapters import build
from tests.platform.scripted_engine import ScriptedEngine, says
from tests.platform.tiny_model import model_info

from loraplex.engine.protocol import LinearShapes
from loraplex.platform.app import create_app
from loraplex.platform.services import Resources
from loraplex.platform.settings import Settings
from loraplex.tenants import admin_keys
from loraplex.tenants.console_sessions import SessionOwner
from loraplex.tenants.db import Database, migrate
from loraplex.tenants.passwords import Passwords
from loraplex.tenants.quotas_memory import MemoryQuotas

PEPPER = b"p" * 32
WORKER_METRICS = """
# TYPE loraplex_step_adapters histogram
loraplex_step_adapters_bucket{le="+Inf"} 10.0
loraplex_step_adapters_count 10.0
loraplex_step_adapters_sum 25.0
# TYPE loraplex_step_tokens histogram
loraplex_step_tokens_bucket{le="+Inf"} 10.0
loraplex_step_tokens_count 10.0
loraplex_step_tokens_sum 400.0
# TYPE loraplex_worker_requests gauge
loraplex_worker_requests{state="running"} 3.0
loraplex_worker_requests{state="waiting"} 1.0
# TYPE loraplex_kv_blocks gauge
loraplex_kv_blocks{state="free"} 700.0
loraplex_kv_blocks{state="held"} 300.0
"""


class Clock:
    """The time, or what a test makes of it."""

    def __init__(self) -> None:
        self.fixed_s: float | None = None

    def __call__(self) -> float:
        return time.time() if self.fixed_s is None else self.fixed_s


@dataclass
class ConsolePlatform:
    """Everything of one gateway."""

    app: FastAPI
    resources: Resources
    engine: ScriptedEngine
    clock: Clock
    root: str
    admin_key: str
    admin_key_id: str

    async def open_session(self, person_id: str | None = None) -> str:
        """The cookie of a new session: of a person, else of the admin key."""
        key = None if person_id else self.admin_key_id
        owner = SessionOwner(person_id=person_id, admin_key_id=key)
        cookie = await self.app.state.console.open_session(owner, "Chromium")
        assert isinstance(cookie, str)
        return cookie


@asynccontextmanager
async def console_platform(
    data_dir: Path,
    *,
    lifespan: bool = True,
    model_name: str = "tiny",
    migrated: Path | None = None,
    settings: Settings | None = None,
) -> AsyncIterator[ConsolePlatform]:
    """Without `lifespan` nothing happens in the background; samples are then taken by hand.

    `migrated` is a database file to start from.
    """
    settings = settings or Settings(data_dir=data_dir, drain_timeout_s=2)
    if migrated is not None:
        shutil.copy(migrated, data_dir / "loraplex.db")
    database = Database.open(settings.resolved_database_url)
    if migrated is None:
        await migrate(database)
    clock, engine = Clock(), ScriptedEngine(_model(model_name))
    engine.answer, engine.metrics_text = says("Hel", "lo", "!"), WORKER_METRICS
    resources = Resources(
        settings=settings,
        database=database,
        quotas=MemoryQuotas(time.monotonic_ns),
        engine=engine,
        pepper=PEPPER,
        clock=clock,
        entropy=secrets.token_bytes,
        registry=CollectorRegistry(),
    )
    async with database.session() as session:
        key = await admin_keys.mint(session, "operator", PEPPER, resources.now(), resources.entropy)
    app = create_app(resources)
    app.state.services = replace(app.state.services, passwords=cheap_passwords())
    async with _listening(app, lifespan=lifespan) as root:
        yield ConsolePlatform(app, resources, engine, clock, root, key.text, key.key_id)
    await database.close()


def cheap_passwords() -> Passwords:
    """Hashes as the platform does, in no time."""
    return Passwords(PasswordHasher(time_cost=1, memory_cost=64, parallelism=1))


def adapter_files(folder: Path) -> tuple[Path, Path]:
    """A checkpoint that fits the engine's model: its configuration and its tensors."""
    build.save(folder)
    return folder / "adapter_config.json", folder / "adapter_model.safetensors"


@asynccontextmanager
async def _listening(app: FastAPI, *, lifespan: bool) -> AsyncIterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="on" if lifespan else "off"
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    host, port = listener.getsockname()
    yield f"http://{host}:{port}"
    server.should_exit = True
    await serving
    listener.close()


def _model(name: str) -> object:
    base = build.base()
    shapes = LinearShapes(
        linears=dict(base.linears), embeddings=dict(base.embeddings), heads=tuple(base.heads)
    )
    return model_info(name=name, shapes=shapes)
