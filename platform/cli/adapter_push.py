"""`loraplex adapter push`: a checkpoint from a folder of this machine becomes a version."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.adapter_target import row_of
from loraplex.platform.cli.context import (
    AsJson,
    CommandContext,
    CommandFailed,
    DatabaseUrl,
    DataDir,
    run,
)
from loraplex.platform.cli.output import print_json

if TYPE_CHECKING:
    from loraplex.adapters.base_shapes import BaseShapes
    from loraplex.adapters.checkpoint import Checkpoint
    from loraplex.adapters.registry.registry import PublishedVersion
    from loraplex.platform.base_record import BaseRecord
    from loraplex.platform.settings import Settings


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The base model that an adapter is checked against."""

    name: str
    shapes: "BaseShapes"


def push(
    name: Annotated[str, typer.Argument(metavar="TENANT/NAME", help="What to publish it as.")],
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a PEFT LoRA checkpoint.")
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|demo", help="Base model's folder. Default: what `loraplex serve` served."
        ),
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Check a checkpoint against the base model, store it and publish it as the newest version."""
    tenant, slash, adapter = name.partition("/")
    if not slash:
        raise typer.BadParameter(f"{name!r} is not of the form TENANT/NAME.")

    async def work(context: CommandContext) -> "tuple[PublishedVersion, str, bool]":
        from loraplex.adapters.profile import Profile
        from loraplex.adapters.registry import registry, resolution, storage_use
        from loraplex.adapters.registry.registry import Publication
        from loraplex.tenants import audit
        from loraplex.tenants import directory as tenants
        from loraplex.tenants.ids import check_slug

        async with context.database.reader() as session:
            owner = await tenants.get_by_name(session, tenant)
        check_slug(adapter, "The adapter's name")
        base = _base_model(context.settings, model)
        checkpoint = _checked(directory, base)
        publication = Publication(
            name=adapter,
            digest=checkpoint.digest,
            rank=checkpoint.rank,
            num_bytes=checkpoint.num_bytes,
            base_model=base.name,
            num_modules=len(checkpoint.modules),
            profile=Profile(invocation_tokens=checkpoint.config.invocation_tokens).encoded(),
        )

        async def keep() -> None:
            _store(context.settings, checkpoint)

        async with context.database.reader() as session:
            await storage_use.check_limits(session, owner.id, publication)
        await keep()
        async with context.database.session() as session:
            before = await registry.list_versions(session, owner.id)
            version = await registry.publish(
                session, owner.id, publication, context.now, audit.CLI, keep
            )
            served = await resolution.resolve(session, owner.id, name, base.name)
            return version, served.name, version in before

    version, served, was_there = run(work, data_dir, database_url)
    if as_json:
        print_json([row_of(version)])
        return
    published = f"{version.model}@{version.version}"
    about = f"(rank {version.rank}, {version.num_bytes:,} bytes, {version.digest})"
    if was_there:
        typer.echo(f"These bytes are published as {published} already; nothing changed {about}.")
    else:
        typer.echo(f"Published {published} {about}.")
    if served != published:
        typer.echo(f"{version.model} still means {served}.", err=True)


def _checked(directory: Path, base: BaseModel) -> "Checkpoint":
    """Validate the checkpoint. Raises CommandFailed, CheckpointInvalid."""
    from loraplex.adapters.checkpoint import CONFIG_FILE, inspect

    if not (directory / CONFIG_FILE).is_file():
        what = f"holds no {CONFIG_FILE}" if directory.is_dir() else "is no folder"
        raise CommandFailed(f"{directory} {what}; name one that PEFT's save_pretrained wrote")
    checkpoint = inspect(directory, base.shapes)
    if checkpoint.vocab_size is not None:
        raise CommandFailed(
            f"{directory} has {checkpoint.vocab_size} tokens, more than the base model, which need "
            "its tokenizer: upload both with POST /v1/adapters"
        )
    return checkpoint


def _store(settings: "Settings", checkpoint: "Checkpoint") -> None:
    from loraplex.platform.adapter_bytes import store_of

    try:
        store_of(settings).put(checkpoint)
    except OSError as error:
        where = settings.adapters_url or settings.adapters_dir
        raise CommandFailed(f"the adapter cannot be stored in {where}: {error}") from error


def _base_model(settings: "Settings", model: str | None) -> BaseModel:
    """Find the base model: the one asked for, else the one that the worker served last.

    The name matters: an adapter is served only on the base model it was checked against.
    """
    from loraplex.adapters.base_shapes import BaseShapes
    from loraplex.platform.base_record import shapes_told
    from loraplex.platform.demo.base import DEMO_MODEL_NAME, demo_model_dir
    from loraplex.platform.settings import DEMO_MODEL

    served = _served_model(settings.base_record_path)
    if model == DEMO_MODEL:
        return BaseModel(DEMO_MODEL_NAME, BaseShapes.read(demo_model_dir(settings.data_dir)))
    if served is not None and model in (None, str(served.path)):
        return BaseModel(served.name, shapes_told(served.shapes))
    if model is None:
        raise CommandFailed(
            f"which base model is not known: no worker has run on {settings.data_dir} yet. "
            "Start `loraplex serve` once, or name the model's folder with --model."
        )
    path = Path(model).resolve()
    return BaseModel(path.name, BaseShapes.read(path))


def _served_model(path: Path) -> "BaseRecord | None":
    """Read what the worker recorded when it last loaded its model."""
    from loraplex.platform.base_record import read_record

    try:
        return read_record(path)
    except (OSError, ValueError) as error:
        raise CommandFailed(
            f"{path} cannot be read ({error!r}); start `loraplex serve` "
            "once, which writes it, or name the model's folder with --model."
        ) from error
