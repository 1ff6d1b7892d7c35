"""How commands about adapters in memory reach the worker: over its stream, or through a gateway."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import typer

from loraplex.platform.cli.context import CommandContext, CommandFailed

if TYPE_CHECKING:
    from loraplex.engine.client import StreamClient

CONNECT_TIMEOUT_S = 5.0

Document = dict[str, Any]

GatewayUrl = Annotated[
    str | None,
    typer.Option(
        "--url", help="Gateway to ask, like http://127.0.0.1:8000. Default: the worker itself."
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        help="File with an admin key for --url; `loraplex admin-key create` makes one.",
    ),
]


@asynccontextmanager
async def worker_of(context: CommandContext) -> AsyncIterator["StreamClient"]:
    """The worker beside this command, connected. Raises CommandFailed if none answers."""
    from loraplex.engine.client import StreamClient
    from loraplex.platform.stream import stream_address

    address, security = stream_address(context.settings)
    client = StreamClient(address, security, 1)
    client.start()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await client.wait_connected()
        yield client
    except TimeoutError:
        raise CommandFailed(
            f"no worker answers at {address}; start one with: loraplex serve, or name a gateway "
            "with --url"
        ) from None
    finally:
        await client.close()


class GatewayAccess:
    """An admin's way into a gateway."""

    def __init__(self, url: str, key_file: Path | None) -> None:
        """Reads the key. Raises BadParameter."""
        if key_file is None:
            raise typer.BadParameter(
                "names a gateway that asks for an admin key: add --key-file", param_hint="--url"
            )
        try:
            self._key = key_file.read_text().strip()
        except OSError as error:
            raise typer.BadParameter(
                f"{key_file} cannot be read: {error.strerror}", param_hint="--key-file"
            ) from None
        if not url.startswith(("http://", "https://")):
            raise typer.BadParameter(
                f"{url!r} does not begin with http:// or https://", param_hint="--url"
            )
        self._url = url

    def ask(self, path: str, body: Document | None = None) -> Document:
        """GET it, or POST the body. Raises CommandFailed."""
        request = Request(  # noqa: S310  the scheme is checked above
            self._url.rstrip("/") + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"},
        )
        try:
            with urlopen(request, timeout=10) as answer:  # noqa: S310  as above
                found: Document = json.load(answer)
                return found
        except HTTPError as error:
            raise CommandFailed(f"{self._url} answers {error.code}: {_detail(error)}") from None
        except (URLError, OSError, ValueError) as error:
            raise CommandFailed(f"{self._url} cannot be asked: {error}") from None


def _detail(error: HTTPError) -> str:
    try:
        return str(json.load(error)["detail"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)
