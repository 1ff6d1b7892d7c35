"""The gateway's process: its HTTP server over a database, quotas and one worker's stream."""

import asyncio
import math
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import uvicorn
from prometheus_client import CollectorRegistry

from loraplex.engine.client import StreamClient
from loraplex.platform.app import create_app
from loraplex.platform.services import Resources
from loraplex.platform.settings import Settings
from loraplex.platform.stream import stream_address
from loraplex.tenants.db import Database, explaining_failures, migrate
from loraplex.tenants.limits import Limits
from loraplex.tenants.quotas import MemoryQuotas, Quotas
from loraplex.tenants.quotas_redis import RedisQuotas
from loraplex.tenants.secret import confirm_secret, load_secret


class PortInUse(Exception):
    """The gateway's address cannot be listened on; the message has the remedy."""


def listen(settings: Settings) -> socket.socket:
    """Bind the gateway's address before anything slow is started. Raises PortInUse."""
    try:
        return socket.create_server((settings.host, settings.port), backlog=1024)
    except OSError as error:
        raise PortInUse(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; stop what "
            "listens there, or choose another port with --port (0 takes a free one)"
        ) from error


@asynccontextmanager
async def open_resources(settings: Settings) -> AsyncIterator[Resources]:
    """Open the database, the quotas and the stream to the worker; close them at the end."""
    given = settings.secret
    pepper = load_secret(settings.data_dir, given.get_secret_value() if given else None)
    database = Database.open(settings.resolved_database_url)
    address, security = stream_address(settings)
    engine = StreamClient(address, security, settings.stream_buffer_events)
    try:
        await migrate(database)
        with explaining_failures(database.url):
            async with database.session() as session:
                await confirm_secret(session, pepper)
        async with open_quotas(settings) as quotas:
            engine.start()
            yield Resources(
                settings=settings,
                database=database,
                quotas=quotas,
                engine=engine,
                pepper=pepper,
                clock=time.time,
                entropy=secrets.token_bytes,
                registry=CollectorRegistry(),
            )
    finally:
        await engine.close()
        await database.close()


@asynccontextmanager
async def open_quotas(settings: Settings) -> AsyncIterator[Quotas]:
    """Quotas of this gateway alone, or those in the store that gateways share.

    Raises:
        QuotaBackendUnavailable: the store cannot be used.
    """
    defaults = _default_limits(settings)
    if settings.redis_url is None:
        yield MemoryQuotas(defaults, time.monotonic_ns)
        return
    shared = RedisQuotas.open(settings.redis_url, defaults)
    try:
        await shared.ping()
        yield shared
    finally:
        await shared.close()


class GatewayServer(uvicorn.Server):
    """An HTTP server that says when it accepts connections, and drains before it ends."""

    def __init__(self, resources: Resources, listener: socket.socket) -> None:
        self._listener = listener
        self._on_started: Callable[[], None] = lambda: None
        self._app = create_app(resources)
        super().__init__(
            uvicorn.Config(
                self._app,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="on",
                timeout_graceful_shutdown=math.ceil(resources.settings.drain_timeout_s),
            )
        )

    @property
    def url(self) -> str:
        """Where clients reach it."""
        host, port = self._listener.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def load_prompts(self) -> None:
        """Read the worker's tokenizer now rather than with the first request."""
        await self._app.state.services.prompts.load()

    async def serve_until_signalled(self, on_started: Callable[[], None]) -> None:
        """Serve until SIGINT or SIGTERM, then finish what is open; a second signal ends it now."""
        self._on_started = on_started
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            # The server raises its signal again when it has drained; its work is done by then.
            loop.add_signal_handler(number, lambda: None)
        await self.serve(sockets=[self._listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections, and say so."""
        await super().startup(sockets)
        if not self.should_exit:
            self._on_started()


async def run_gateway(settings: Settings, announce: Callable[[str], None]) -> None:
    """`loraplex gateway`: serve over a worker that runs elsewhere."""
    with listen(settings) as listener:
        async with open_resources(settings) as resources:
            server = GatewayServer(resources, listener)
            await server.serve_until_signalled(lambda: announce(server.url))


def _default_limits(settings: Settings) -> Limits:
    return Limits(
        requests_per_minute=settings.requests_per_minute,
        tokens_per_minute=settings.tokens_per_minute,
        concurrency=settings.concurrency,
    )
