"""`loraplex adapter`: the adapters of a tenant."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli import adapter_check, adapter_top
from loraplex.platform.cli.adapter_upload import upload
from loraplex.platform.cli.context import (
    AsJson,
    CommandContext,
    CommandFailed,
    DatabaseUrl,
    DataDir,
    TenantName,
    run,
)
from loraplex.platform.cli.output import print_json, print_table

if TYPE_CHECKING:
    from loraplex.adapters.base_shapes import BaseShapes
    from loraplex.adapters.registry.registry import Publication, PublishedVersion
    from loraplex.platform.base_record import BaseRecord
    from loraplex.platform.settings import Settings

app = typer.Typer(help="Adapters of a tenant.")
app.command()(upload)
app.command()(adapter_check.check)
app.command()(adapter_top.top)


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The base model that an adapter is checked against."""

    name: str
    shapes: "BaseShapes"


@app.command()
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
        from loraplex.adapters.registry import registry, resolution
        from loraplex.tenants import directory as tenants

        async with context.database.reader() as session:
            owner = await tenants.get_by_name(session, tenant)
        publication = _check_and_store(context.settings, adapter, directory, model)
        async with context.database.session() as session:
            before = await registry.list_versions(session, owner.id)
            version = await registry.publish(session, owner.id, publication, context.now)
            served = await resolution.resolve(session, owner.id, name, publication.base_model)
            return version, served.name, version in before

    version, served, was_there = run(work, data_dir, database_url)
    if as_json:
        print_json([asdict(version)])
        return
    published = f"{version.model}@{version.version}"
    about = f"(rank {version.rank}, {version.num_bytes:,} bytes, {version.digest})"
    if was_there:
        typer.echo(f"These bytes are published as {published} already; nothing changed {about}.")
    else:
        typer.echo(f"Published {published} {about}.")
    if served != published:
        typer.echo(f"{version.model} still means {served}.", err=True)


@app.command("list")
def list_(
    tenant: TenantName,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """List all versions of a tenant's adapters; a name without a version means the newest."""

    async def work(context: CommandContext) -> "list[PublishedVersion]":
        from loraplex.adapters.registry import registry
        from loraplex.tenants import directory

        async with context.database.reader() as session:
            owner = await directory.get_by_name(session, tenant)
            return await registry.list_versions(session, owner.id)

    versions = run(work, data_dir, database_url)
    if as_json:
        print_json(asdict(version) for version in versions)
        return
    print_table(
        ("MODEL", "VERSION", "RANK", "BYTES", "BASE MODEL", "CREATED", "SELF-TEST", "DIGEST"),
        (
            (
                v.model,
                v.version,
                v.rank,
                v.num_bytes,
                v.base_model,
                v.created_at,
                "not run" if v.self_test is None else f"passed ({v.self_test['method']})",
                v.digest,
            )
            for v in versions
        ),
        empty=f"The tenant has no adapters; add one with: loraplex adapter push {tenant}/NAME DIR",
    )


def _check_and_store(
    settings: "Settings", name: str, directory: Path, model: str | None
) -> "Publication":
    """Validate the checkpoint, copy it into the store, and return what to publish."""
    from loraplex.adapters.checkpoint import CONFIG_FILE, inspect
    from loraplex.adapters.profile import Profile
    from loraplex.adapters.registry.registry import Publication
    from loraplex.adapters.storage import AdapterStore
    from loraplex.tenants.ids import check_slug

    check_slug(name, "The adapter's name")
    base = _base_model(settings, model)
    if not (directory / CONFIG_FILE).is_file():
        what = f"holds no {CONFIG_FILE}" if directory.is_dir() else "is no folder"
        raise CommandFailed(f"{directory} {what}; name one that PEFT's save_pretrained wrote")
    checkpoint = inspect(directory, base.shapes)
    store = settings.adapters_dir
    try:
        AdapterStore(store).put(checkpoint)
    except OSError as error:
        raise CommandFailed(f"the adapter cannot be stored in {store}: {error}") from error
    return Publication(
        name,
        checkpoint.digest,
        checkpoint.rank,
        checkpoint.num_bytes,
        base.name,
        len(checkpoint.modules),
        Profile(invocation_tokens=checkpoint.config.invocation_tokens).encoded(),
    )


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
