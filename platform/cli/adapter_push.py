"""`loraplex adapter push`: a checkpoint from a folder of this machine becomes a version."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.adapter_target import row_of
from loraplex.platform.cli.base_model import BaseModel, ModelOption, find_base_model
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
    from loraplex.adapters.registry.registry import PublishedVersion
    from loraplex.adapters.storage import Store
    from loraplex.platform.adapter_checks import CheckedAdapter
    from loraplex.platform.settings import Settings
    from loraplex.tenants.directory import TenantRecord


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
    model: ModelOption = None,
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
    from loraplex.platform.adapter_bytes import AdapterBytes, store_of
    from loraplex.tenants import audit
    from loraplex.tenants import directory as tenants

    tenant, adapter = target
    async with context.database.reader() as session:
        owner = await tenants.get_by_name(session, tenant)
    check_adapter_name(adapter)
    base = find_base_model(context.settings, model)
    if base is None:
        raise CommandFailed(
            f"which base model is not known: no worker has run on {context.settings.data_dir} yet. "
            "Start `loraplex serve` once, or name the model's folder with --model."
        )
    checked = await _checked(context.settings, directory, base, owner)
    checkpoint = checked.checkpoint
    for warning in checkpoint.warnings:
        typer.echo(f"warning: {warning}", err=True)
    publication = checked.publication(adapter, base.name)

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
    if version.self_test is None:
        typer.echo("self_test: not run; upload it over HTTP to have it tested.", err=True)
    if pushed.served != published:
        typer.echo(f"{version.model} still means {pushed.served}.", err=True)


def _check_is_checkpoint(directory: Path) -> None:
    from loraplex.adapters.checkpoint import CONFIG_FILE

    if not (directory / CONFIG_FILE).is_file():
        what = f"holds no {CONFIG_FILE}" if directory.is_dir() else "is no folder"
        raise CommandFailed(f"{directory} {what}; name one that PEFT's save_pretrained wrote")


async def _checked(
    settings: "Settings", directory: Path, base: BaseModel, owner: "TenantRecord"
) -> "CheckedAdapter":
    """Validate the checkpoint and what it brings. Raises CommandFailed, CheckpointInvalid."""
    import secrets
    from datetime import UTC, datetime

    from loraplex.adapters.checkpoint import inspect
    from loraplex.adapters.profile import Profile
    from loraplex.adapters.profile_files import PROFILE_FILES
    from loraplex.platform.adapter_checks import CheckedAdapter, Checker, check_folder, limits_of
    from loraplex.platform.base_info import info_of
    from loraplex.platform.services import template_processes

    _check_is_checkpoint(directory)
    limits = limits_of(owner.adapters)
    checkpoint = inspect(directory, base.shapes, limits)
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
        checker = Checker(info, templates, lambda: datetime.now(UTC), secrets.token_bytes, limits)
        return await check_folder(checker, owner.id, directory)
    finally:
        await templates.close()


def _store(settings: "Settings", store: "Store", checked: "CheckedAdapter") -> None:
    from loraplex.adapters.opened_store import shown_url

    try:
        store.put(checked.checkpoint, checked.profile.kept())
    except OSError as error:
        where = shown_url(settings.adapters_url or str(settings.adapters_dir))
        raise CommandFailed(f"the adapter cannot be stored in {where}: {error}") from error
