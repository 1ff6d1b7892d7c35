"""`loraplex serve`: a gateway and its worker on one machine, ready to be used."""

import asyncio
import json
from asyncio import Task
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loraplex.engine.client import claimed
from loraplex.platform.demo.base import demo_model_dir, find_gguf
from loraplex.platform.demo.seed import Demo, SeededTenant, seed
from loraplex.platform.gateway import GatewayServer, listen, open_resources
from loraplex.platform.services import Resources
from loraplex.platform.settings import Settings
from loraplex.platform.sole import sole_platform
from loraplex.platform.stream import stream_address
from loraplex.platform.supervisor import WorkerSupervisor
from loraplex.platform.worker_settings import DEMO_MODEL
from loraplex.tenants import admin_keys
from loraplex.tenants.errors import KeyRevoked

WORKER_STOP_S = 10.0
"""What the worker gets to end, after the gateway has drained."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What a person or a script needs in order to send the first request."""

    url: str
    tenants: tuple[SeededTenant, ...]
    base_model: str
    admin_key: str | None
    """Opens the admin API and the console; None where the operator revoked it."""
    data_dir: Path
    left_alone: tuple[str, ...] = ()
    """Names of the demo's tenants that were deleted, or that are somebody else's."""

    def as_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), default=str)


async def serve(settings: Settings, announce: Callable[[Ready], None]) -> int:
    """Serve until a signal ends it; `announce` is called once requests can be sent. Returns how
    many requests were not settled.

    Raises PortInUse, DataDirInUse, AddressInUse, DemoModelMissing, FileNotFoundError for a model,
    WorkerRefusedStart and what opening the database raises.
    """
    with sole_platform(settings.data_dir), listen(settings) as listener:
        address, _ = stream_address(settings)
        with claimed(address):
            pass  # a worker that runs there already would be taken for the one started here
        if settings.model == DEMO_MODEL and not demo_model_dir(settings.data_dir).exists():
            find_gguf()  # fails now, with its remedy, rather than in the worker a minute later
        _refuse_absent(settings.model)
        async with open_resources(settings) as resources:
            server = GatewayServer(resources, listener)
            ready = asyncio.Event()
            supervisor = WorkerSupervisor(settings, has_served=ready.is_set)

            async def tell_when_ready() -> None:
                announce(await _prepare(resources, server))
                ready.set()
                await asyncio.Event().wait()  # the others decide when all ends

            try:
                # Probes are answered from the start, requests with 503 until a worker is there.
                await _first_to_end(
                    supervisor.run(), tell_when_ready(), server.serve_until_signalled(_nothing)
                )
            finally:
                # All is settled: that the worker goes away now is nothing to warn of.
                await resources.engine.close()
                await supervisor.stop(WORKER_STOP_S)
            return server.num_unsettled


def _refuse_absent(model: str) -> None:
    """Raise FileNotFoundError for what is a path, and no name on a hub, where nothing is."""
    if model.startswith(("./", "../", "/")) and not Path(model).exists():
        raise FileNotFoundError(
            f"there is no model at {model}; name a folder with config.json and weights, a hub "
            f"name or `{DEMO_MODEL}`"
        )


def _nothing() -> None:
    """The address is told when requests can be sent, not when the server listens."""


async def _prepare(resources: Resources, server: GatewayServer) -> Ready:
    """Wait for the worker, and make what the first request needs."""
    await resources.engine.wait_connected()
    settings = resources.settings
    demo = Demo()
    if settings.model == DEMO_MODEL:
        demo = await seed(resources, demo_model_dir(settings.data_dir))
    admin_key = await _admin_key(resources)
    await server.load_prompts()
    return Ready(
        url=server.url,
        tenants=demo.tenants,
        base_model=resources.engine.model.name,
        admin_key=admin_key,
        data_dir=settings.data_dir.resolve(),
        left_alone=demo.left_alone,
    )


async def _admin_key(resources: Resources) -> str | None:
    """The key that this deployment's secret determines, the same at each start."""
    async with resources.database.session() as session:
        try:
            minted = await admin_keys.derive(session, "serve", resources.pepper, resources.now())
        except KeyRevoked:
            return None
    return minted.text


async def _first_to_end(*works: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends; end the others and pass on what it raised."""
    tasks: list[Task[None]] = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
