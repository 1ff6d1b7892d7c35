"""`loraplex adapter warm`: have an adapter brought to the device before its first request."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import typer

from loraplex.platform.cli.adapter_target import ADAPTER, ALIAS, VERSION, naming_absent, target_of
from loraplex.platform.cli.context import (
    AsJson,
    CommandContext,
    CommandFailed,
    DatabaseUrl,
    DataDir,
    reporting_errors,
    run,
)
from loraplex.platform.cli.output import print_json

if TYPE_CHECKING:
    from loraplex.adapters.registry.names import ModelName
    from loraplex.engine.residency_protocol import Tier

_CONNECT_TIMEOUT_S = 5.0
_WHERE: Mapping[str, str] = {
    "device": "on the device already",
    "loading": "on its way to the device",
    "host": "on the host; it is brought to the device when that is worth it",
    "store": "in the store; it is brought to the device when that is worth it",
}

Document = dict[str, Any]


def warm(
    name: Annotated[
        str, typer.Argument(metavar=f"{ADAPTER}[@VERSION|:ALIAS]", help="As requests name it.")
    ],
    ttl: Annotated[
        int, typer.Option(min=10, max=600, help="Seconds for which a request is expected.")
    ] = 60,
    as_json: AsJson = False,
    url: Annotated[
        str | None,
        typer.Option(
            help="Gateway to ask, like http://127.0.0.1:8000. Default: the worker itself."
        ),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            help="File with an admin key for --url; `loraplex admin-key create` makes one."
        ),
    ] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Have an adapter brought to the device before its first request. A hint, no promise."""
    target = target_of(name, ADAPTER, VERSION, ALIAS)
    if url is None:

        async def work(context: CommandContext) -> Document:
            return await _tell_worker(context, target, name, ttl)

        warmed = run(work, data_dir, database_url)
    elif key_file is None:
        raise typer.BadParameter(
            "names a gateway that asks for an admin key: add --key-file", param_hint="--url"
        )
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
    from loraplex.engine.client import StreamClient
    from loraplex.engine.residency_protocol import Warm
    from loraplex.platform.stream import stream_address
    from loraplex.tenants import directory

    address, security = stream_address(context.settings)
    client = StreamClient(address, security, 1)
    client.start()
    tier: Tier | None = None
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            await client.wait_connected()
        async with context.database.reader() as session:
            owner = await directory.get_by_name(session, target.tenant)
            with naming_absent(target.tenant):
                found = await resolution.resolve(session, owner.id, name, client.model.name)
        digest = found.digest or ""
        client.warm(Warm(owner.id, digest, ttl))
        tier = await client.tier(owner.id, digest)
    except TimeoutError:
        raise CommandFailed(
            f"no worker answers at {address}; start one with: loraplex serve, or name a gateway "
            "with --url"
        ) from None
    finally:
        await client.close()
    return {
        "object": "adapter.hint",
        "adapter": f"{target.tenant}/{target.adapter}",
        "version": found.version,
        "digest": digest,
        "tier": tier,
        "expires_at": (datetime.now(UTC) + timedelta(seconds=ttl)).isoformat(),
    }


def _tell_gateway(url: str, key_file: Path, name: str, ttl: int) -> Document:
    try:
        key = key_file.read_text().strip()
    except OSError as error:
        raise typer.BadParameter(
            f"{key_file} cannot be read: {error.strerror}", param_hint="--key-file"
        ) from None
    if not url.startswith(("http://", "https://")):
        raise typer.BadParameter(
            f"{url!r} does not begin with http:// or https://", param_hint="--url"
        )
    tenant, _, adapter = name.partition("/")
    path = f"/admin/v1/tenants/{quote(tenant)}/adapters/{quote(adapter)}/warm"
    request = Request(  # noqa: S310  the scheme is checked above
        url.rstrip("/") + path,
        data=json.dumps({"ttl_s": ttl}).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    try:
        with urlopen(request, timeout=10) as answer:  # noqa: S310  as above
            warmed: Document = json.load(answer)
            return warmed
    except HTTPError as error:
        raise CommandFailed(f"{url} answers {error.code}: {_detail(error)}") from None
    except (URLError, OSError, ValueError) as error:
        raise CommandFailed(f"{url} cannot be asked: {error}") from None


def _detail(error: HTTPError) -> str:
    try:
        return str(json.load(error)["detail"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)
