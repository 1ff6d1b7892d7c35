"""`loraplex adapter import`: an adapter of one of the platform's sources becomes a version."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.adapter_push import Pushed, publish_folder, pushed_as, tell
from loraplex.platform.cli.base_model import ModelOption
from loraplex.platform.cli.context import (
    AsJson,
    CommandContext,
    CommandFailed,
    DatabaseUrl,
    DataDir,
    run,
)

if TYPE_CHECKING:
    from loraplex.platform.settings import Settings


def import_(
    name: Annotated[str, typer.Argument(metavar="TENANT/NAME", help="What to publish it as.")],
    reference: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE:PATH",
            help="Where it is: a name of LORAPLEX_ADAPTER_SOURCES, and a path inside it.",
        ),
    ],
    model: ModelOption = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Fetch an adapter from a source, check it, store it and publish it as the newest version."""
    target = pushed_as(name)
    source, colon, path = reference.partition(":")
    if not colon:
        raise typer.BadParameter(f"{reference!r} is not of the form SOURCE:PATH.")

    async def work(context: CommandContext) -> Pushed:
        with tempfile.TemporaryDirectory() as folder:
            _fetch(context.settings, target[0], (source, path), Path(folder))
            return await publish_folder(context, target, Path(folder), model)

    tell(run(work, data_dir, database_url), as_json=as_json)


def _fetch(settings: "Settings", tenant: str, reference: tuple[str, str], folder: Path) -> None:
    from loraplex.platform.errors import PlatformError
    from loraplex.platform.sources import check_found, open_source

    source, path = reference
    if source not in settings.adapter_sources:
        known = ", ".join(sorted(settings.adapter_sources)) or "none"
        raise CommandFailed(f"LORAPLEX_ADAPTER_SOURCES has no source {source!r}; it has {known}")
    opened = open_source(settings.adapter_sources[source], tenant)
    try:
        found = opened.find(path)
        check_found(found, settings.max_upload_bytes)
        opened.fetch(found, folder)
    except (PlatformError, OSError) as error:
        raise CommandFailed(f"{source}:{path} cannot be imported: {error}") from error
