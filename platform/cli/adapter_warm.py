"""`loraplex adapter warm`: have an adapter brought to the device before its first request."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from loraplex.platform.cli.adapter_target import ADAPTER, ALIAS, VERSION, naming_absent, target_of
from loraplex.platform.cli.context import (
    AsJson,
    CommandContext,
    DatabaseUrl,
    DataDir,
    reporting_errors,
    run,
)
from loraplex.platform.cli.output import print_json
from loraplex.platform.cli.worker_access import (
    Document,
    GatewayAccess,
    GatewayUrl,
    KeyFile,
    worker_of,
)

if TYPE_CHECKING:
    from loraplex.adapters.registry.names import ModelName

_WHERE: Mapping[str, str] = {
    "device": "on the device already",
    "loading": "on its way to the device",
    "host": "on the host; it is brought to the device when that is worth it",
    "store": "in the store; it is brought to the device when that is worth it",
}


def warm(
    name: Annotated[
        str, typer.Argument(metavar=f"{ADAPTER}[@VERSION|:ALIAS]", help="As requests name it.")
    ],
    ttl: Annotated[
        int, typer.Option(min=10, max=600, help="Seconds for which a request is expected.")
    ] = 60,
    as_json: AsJson = False,
    url: GatewayUrl = None,
    key_file: KeyFile = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Have an adapter brought to the device before its first request. A hint, no promise."""
    target = target_of(name, ADAPTER, VERSION, ALIAS)
    if url is None:

        async def work(context: CommandContext) -> Document:
            return await _tell_worker(context, target, name, ttl)

        warmed = run(work, data_dir, database_url)
    else:
        with reporting_errors():
            warmed = _tell_gateway(url, key_file, name, ttl)
    if as_json:
        print_json([warmed])
        return
    model = f"{warmed['adapter']}@{warmed['version']}"
    where = _WHERE.get(warmed["tier"], "somewhere; the worker does not tell")
    typer.echo(f"{model} is {where}. The hint holds until {warmed['expires_at']}.")


async def _tell_worker(
    context: CommandContext, target: "ModelName", name: str, ttl: int
) -> Document:
    """Resolve the name as a request is, and send the hint over the worker's stream."""
    from datetime import UTC, datetime, timedelta

    from loraplex.adapters.registry import resolution
    from loraplex.engine.residency_protocol import Warm
    from loraplex.tenants import directory

    async with worker_of(context) as worker:
        async with context.database.reader() as session:
            owner = await directory.get_by_name(session, target.tenant)
            with naming_absent(target.tenant):
                found = await resolution.resolve(session, owner.id, name, worker.model.name)
        digest = found.digest or ""
        worker.warm(Warm(owner.id, digest, ttl))
        tier = await worker.tier(owner.id, digest)
    return {
        "object": "adapter.hint",
        "adapter": f"{target.tenant}/{target.adapter}",
        "version": found.version,
        "digest": digest,
        "tier": tier,
        "expires_at": (datetime.now(UTC) + timedelta(seconds=ttl)).isoformat(),
    }


def _tell_gateway(url: str, key_file: Path | None, name: str, ttl: int) -> Document:
    tenant, _, adapter = name.partition("/")
    path = f"/admin/v1/tenants/{quote(tenant)}/adapters/{quote(adapter)}/warm"
    return GatewayAccess(url, key_file).ask(path, {"ttl_s": ttl})
