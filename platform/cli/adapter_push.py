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
    from loraplex.adapters.registry.registry import PublishedVersion
    from loraplex.adapters.storage import Store
    from loraplex.platform.adapter_checks import CheckedAdapter
    from loraplex.platform.base_record import BaseRecord
    from loraplex.platform.settings import Settings


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The base model that an adapter is checked against."""

    name: str
    path: Path
    """Its folder."""
    shapes: "BaseShapes"


@dataclass(frozen=True, slots=True)
class Pushed:
    """What became of a folder."""

    version: "PublishedVersion"
    served: str
    """What the adapter's name means now."""
    was_there: bool


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
    target = pushed_as(name)

    async def work(context: CommandContext) -> Pushed:
        return await publish_folder(context, target, directory, model)

    tell(run(work, data_dir, database_url), as_json=as_json)


def pushed_as(name: str) -> tuple[str, str]:
    """Tenant and adapter of a name. Raises BadParameter."""
    tenant, slash, adapter = name.partition("/")
    if not slash:
        raise typer.BadParameter(f"{name!r} is not of the form TENANT/NAME.")
    return tenant, adapter


async def publish_folder(
    context: CommandContext, target: tuple[str, str], directory: Path, model: str | None
) -> Pushed:
    """Check a checkpoint's folder with all that it brings, store it, publish it."""
    from loraplex.adapters.registry import registry, resolution, storage_use
    from loraplex.adapters.registry.names import check_adapter_name
    from loraplex.adapters.registry.registry import Publication
    from loraplex.platform.adapter_bytes import AdapterBytes, store_of
    from loraplex.tenants import audit
    from loraplex.tenants import directory as tenants

    tenant, adapter = target
    async with context.database.reader() as session:
        owner = await tenants.get_by_name(session, tenant)
    check_adapter_name(adapter)
    base = _base_model(context.settings, model)
    checked = await _checked(context.settings, directory, base, owner.id)
    checkpoint = checked.checkpoint
    for warning in checkpoint.warnings:
        typer.echo(f"warning: {warning}", err=True)
    publication = Publication(
        name=adapter,
        digest=checkpoint.digest,
        rank=checkpoint.rank,
        num_bytes=checkpoint.num_bytes,
        base_model=base.name,
        num_modules=len(checkpoint.modules),
        profile=checked.profile.encoded(),
    )

    async with context.database.reader() as session:
        await storage_use.check_limits(session, owner.id, publication)
    store = store_of(context.settings)
    adapter_bytes = AdapterBytes(context.database, store, lambda: context.now)
    async with (
        adapter_bytes.kept(
            checkpoint.digest, lambda: _store(context.settings, store, checked), lambda: None
        ) as claim,
        context.database.session() as session,
    ):
        before = await registry.list_versions(session, owner.id)
        version = await registry.publish(
            session, owner.id, publication, context.now, audit.CLI, claim
        )
        served = await resolution.resolve(session, owner.id, f"{tenant}/{adapter}", base.name)
        return Pushed(version, served.name, version in before)


def tell(pushed: Pushed, *, as_json: bool) -> None:
    """Print what became of a folder."""
    version = pushed.version
    if as_json:
        print_json([row_of(version)])
        return
    published = f"{version.model}@{version.version}"
    about = f"(rank {version.rank}, {version.num_bytes:,} bytes, {version.digest})"
    if pushed.was_there:
        typer.echo(f"These bytes are published as {published} already; nothing changed {about}.")
    else:
        typer.echo(f"Published {published} {about}.")
    if pushed.served != published:
        typer.echo(f"{version.model} still means {pushed.served}.", err=True)


def _check_is_checkpoint(directory: Path) -> None:
    from loraplex.adapters.checkpoint import CONFIG_FILE

    if not (directory / CONFIG_FILE).is_file():
        what = f"holds no {CONFIG_FILE}" if directory.is_dir() else "is no folder"
        raise CommandFailed(f"{directory} {what}; name one that PEFT's save_pretrained wrote")


async def _checked(
    settings: "Settings", directory: Path, base: BaseModel, tenant_id: str
) -> "CheckedAdapter":
    """Validate the checkpoint and what it brings. Raises CommandFailed, CheckpointInvalid."""
    import secrets
    from datetime import UTC, datetime

    from loraplex.adapters.checkpoint import inspect
    from loraplex.adapters.profile import Profile
    from loraplex.adapters.profile_files import PROFILE_FILES
    from loraplex.platform.adapter_checks import CheckedAdapter, Checker, check_folder
    from loraplex.platform.base_info import info_of
    from loraplex.platform.services import template_processes

    _check_is_checkpoint(directory)
    checkpoint = inspect(directory, base.shapes)
    brings = any((directory / name).is_file() for name in PROFILE_FILES)
    if not brings and checkpoint.vocab_size is None:  # one with tokens of its own needs them named
        invocation_tokens = checkpoint.config.invocation_tokens
        return CheckedAdapter(checkpoint, Profile(invocation_tokens=invocation_tokens))
    try:
        info = info_of(base.name, base.path, base.shapes)
    except (OSError, ValueError) as error:
        raise CommandFailed(f"what {directory} brings cannot be checked: {error}") from error
    templates = template_processes(settings)
    try:
        checker = Checker(info, templates, lambda: datetime.now(UTC), secrets.token_bytes)
        return await check_folder(checker, tenant_id, directory)
    finally:
        await templates.close()


def _store(settings: "Settings", store: "Store", checked: "CheckedAdapter") -> None:
    try:
        store.put(checked.checkpoint, checked.profile.kept())
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
        folder = demo_model_dir(settings.data_dir)
        return BaseModel(DEMO_MODEL_NAME, folder, BaseShapes.read(folder))
    if served is not None and model in (None, str(served.path)):
        return BaseModel(served.name, served.path, shapes_told(served.shapes))
    if model is None:
        raise CommandFailed(
            f"which base model is not known: no worker has run on {settings.data_dir} yet. "
            "Start `loraplex serve` once, or name the model's folder with --model."
        )
    path = Path(model).resolve()
    return BaseModel(path.name, path, BaseShapes.read(path))


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
