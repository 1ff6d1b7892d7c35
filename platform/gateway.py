"""The gateway's process: its HTTP server over a database, quotas and one worker's stream."""

import asyncio
import gc
import math
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import FrameType

import uvicorn
from prometheus_client import CollectorRegistry

from loraplex.adapters.registry import gateways
from loraplex.engine.client import StreamClient
from loraplex.platform.app import create_app
from loraplex.platform.services import Resources, Services
from loraplex.platform.settings import Settings
from loraplex.platform.stream import stream_address
from loraplex.tenants.db import Database, explaining_failures, migrate
from loraplex.tenants.quotas import Quotas
from loraplex.tenants.quotas_guarded import GuardedQuotas
from loraplex.tenants.quotas_memory import MemoryQuotas
from loraplex.tenants.quotas_redis import RedisQuotas
from loraplex.tenants.secret import confirm_secret, load_secret

BROKEN_OFF_S = 2
"""What requests get to end by themselves after they were broken off, before they are cancelled."""


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
        async with open_quotas(settings, database) as quotas:
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
async def open_quotas(settings: Settings, database: Database) -> AsyncIterator[Quotas]:
    """Quotas of this gateway alone, or those in the store that gateways share; while that is away,
    this gateway's part of them.

    Raises:
        QuotaBackendUnavailable: the store cannot be used.
    """
    if settings.redis_url is None:
        yield MemoryQuotas(time.monotonic_ns)
        return
    shared = RedisQuotas.open(settings.redis_url, settings.intent_lease_s)

    async def count_gateways() -> int:
        with explaining_failures(database.url):
            async with database.reader() as session:
                return await gateways.count_running(session, datetime.now(UTC))

    guarded = GuardedQuotas(shared, MemoryQuotas(time.monotonic_ns), count_gateways)
    try:
        await shared.ping()
        await shared.warn_of_eviction()
        yield guarded
    finally:
        await guarded.close()
        await shared.close()


class GatewayServer(uvicorn.Server):
    """An HTTP server that says when it accepts connections, and settles all before it ends."""

    def __init__(self, resources: Resources, listener: socket.socket) -> None:
        self._listener = listener
        self._on_started: Callable[[], None] = lambda: None
        self._app = create_app(resources)
        self._services: Services = self._app.state.services
        self._drain_timeout_s = resources.settings.drain_timeout_s
        super().__init__(
            uvicorn.Config(
                self._app,
                log_config=None,
                access_log=False,
                server_header=False,
                # The app judges proxies itself; the server would believe some by default.
                proxy_headers=False,
                # The server would skip the app's end after a second signal.
                lifespan="off",
                timeout_graceful_shutdown=math.ceil(self._drain_timeout_s) + 2 * BROKEN_OFF_S,
            )
        )

    @property
    def url(self) -> str:
        """Where clients reach it."""
        host, port = self._listener.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def num_unsettled(self) -> int:
        """Requests whose usage did not get into the ledger and stands in the log."""
        return self._services.open_requests.num_unsettled

    async def load_prompts(self) -> None:
        """Read the worker's tokenizer now rather than with the first request."""
        await self._services.prompts.load()

    async def serve_until_signalled(self, on_started: Callable[[], None]) -> None:
        """Serve until SIGINT or SIGTERM, then let open requests end within the drain timeout; a
        second signal breaks them off. All are settled when this returns, however it does, except
        for `num_unsettled`."""
        self._on_started = on_started
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            # The server's own handlers end with it; no signal may end what is settled after it.
            loop.add_signal_handler(number, lambda: None)
        async with self._app.router.lifespan_context(self._app):
            try:
                await self.serve(sockets=[self._listener])
            finally:
                self._break_off()
                self._cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections, and say so."""
        await super().startup(sockets)
        # What was made until now stays: to look through it for cycles again and again would make
        # requests wait for some 100 ms each time.
        gc.collect()
        gc.freeze()
        if not self.should_exit:
            self._on_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  of uvicorn
        """Begin to end; called for each signal. The server's own would not wait for clean ends."""
        drain_s = 0.0 if self.should_exit else self._drain_timeout_s
        self.should_exit = True
        loop = asyncio.get_running_loop()
        loop.call_soon_threadsafe(loop.call_later, drain_s, self._break_off)

    def _break_off(self) -> None:
        """Take no more requests, and end those that run: their clients get an error."""
        if not self.started:
            return
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        self._services.open_requests.break_off()
        asyncio.get_running_loop().call_later(BROKEN_OFF_S, self._cancel)

    def _cancel(self) -> None:
        """End what does not end by itself, like a request whose body does not come."""
        for task in self.server_state.tasks:
            task.cancel()


async def run_gateway(settings: Settings, announce: Callable[[str], None]) -> int:
    """`loraplex gateway`: serve over a worker that runs elsewhere. Returns how many requests were
    not settled."""
    with listen(settings) as listener:
        async with open_resources(settings) as resources:
            server = GatewayServer(resources, listener)
            await server.serve_until_signalled(lambda: announce(server.url))
            return server.num_unsettled
