"""`loraplex adapter retire | restore | pin | unpin | delete`: the life of versions.

Commands change the database. A gateway that runs learns of deletions by its next sweep.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loraplex.platform.cli.adapter_target import (
    ADAPTER,
    ALIAS,
    VERSION,
    changed,
    row_of,
    target_of,
)
from loraplex.platform.cli.context import AsJson, CommandContext, DatabaseUrl, DataDir, run
from loraplex.platform.cli.output import print_json

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from loraplex.adapters.registry.names import AdapterName, ModelName
    from loraplex.adapters.registry.registry import PublishedVersion
    from loraplex.tenants.audit import Act

Name = Annotated[str, typer.Argument(metavar=VERSION, help="The version.")]
FORCED = "each gateway ends its requests within about 20 s"


@dataclass(frozen=True, slots=True)
class Deleted:
    """What a command has deleted, or begun to."""

    aliases: "list[str]"
    """As requests name them."""
    versions: "list[PublishedVersion]"


Work = Callable[["AsyncSession", "Act", "AdapterName", int], Awaitable[None]]


def retire(
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="Delete aliases that mean it, and end its canaries.")
    ] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Let no new request find a version; those that run on it go on."""

    from loraplex.adapters.registry import life_cycle

    version = _change(name, partial(life_cycle.retire, force=force), data_dir, database_url)
    _tell(version, "is retired: no new request finds it", as_json=as_json)


def restore(
    name: Name, as_json: AsJson = False, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """Let requests find a retired version again."""

    from loraplex.adapters.registry import life_cycle

    _tell(
        _change(name, life_cycle.restore, data_dir, database_url), "can be called", as_json=as_json
    )


def pin(
    name: Name, as_json: AsJson = False, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """Keep a version in the worker's memory, as far as the tenant's adapter_pin_bytes go."""

    from loraplex.adapters.registry import pins

    _tell(_change(name, pins.pin, data_dir, database_url), "is pinned", as_json=as_json)


def unpin(
    name: Name, as_json: AsJson = False, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """Let a version be pushed out of the worker's memory again."""

    from loraplex.adapters.registry import pins

    _tell(_change(name, pins.unpin, data_dir, database_url), "is not pinned", as_json=as_json)


def delete(
    name: Annotated[
        str,
        typer.Argument(
            metavar=f"{ADAPTER}[@VERSION|:ALIAS]",
            help="An adapter with all that it has, one version, or an alias.",
        ),
    ],
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="End the requests that run, on each gateway within about 20 s, and delete the "
            "aliases of a version. Those of a whole adapter always go.",
        ),
    ] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Delete an adapter, a version or an alias; bytes go when no request runs on them any more."""
    target = target_of(name, ADAPTER, VERSION, ALIAS)

    async def work(context: CommandContext) -> Deleted:
        return await _delete(context, target, force=force)

    deleted = run(work, data_dir, database_url)
    if as_json:
        print_json(row_of(version) for version in deleted.versions)
        return
    if target.alias is not None and not deleted.aliases:
        typer.echo(f"There was no alias {name}.")
    for alias in deleted.aliases:
        typer.echo(f"{alias} is deleted.")
    goes_on = FORCED if force else "a gateway ends it when its requests end"
    for version in deleted.versions:
        is_over = version.standing.status == "deleted"
        how = "deleted" if is_over else f"being deleted: {goes_on}"
        typer.echo(f"{version.model}@{version.version} is {how}.")


async def _delete(context: CommandContext, target: "ModelName", *, force: bool) -> Deleted:
    """Begin the deletion, finish it where no gateway runs, and return what was deleted."""
    from loraplex.adapters.registry import aliases, life_cycle, registry

    async def begin(
        session: "AsyncSession", act: "Act", adapter: "AdapterName"
    ) -> "tuple[AdapterName, list[str]]":
        async def named() -> list[str]:
            listed = await aliases.list_aliases(session, adapter.tenant_id, adapter.adapter)
            return [alias.model for alias in listed]

        mode: life_cycle.Mode = "force" if force else "drain"
        before = await named()
        if target.alias is not None:
            await aliases.delete_alias(session, act, adapter, target.alias)
        elif target.version is not None:
            await life_cycle.delete_version(session, act, adapter, target.version, mode)
        else:
            await life_cycle.delete_adapter(session, act, adapter, mode)
        left = set(await named())
        return adapter, [alias for alias in before if alias not in left]

    adapter, gone = await changed(context, target, begin)
    if target.alias is not None:
        return Deleted(gone, [])
    await finish_deletions(context)
    async with context.database.reader() as session:
        if target.version is not None:
            versions = [await registry.get_version(session, adapter, target.version)]
        else:
            versions = await registry.list_all_versions(session, adapter)
    return Deleted(gone, versions)


async def finish_deletions(context: CommandContext) -> None:
    """Finish the deletions of versions that no gateway stands in the way of."""
    from loraplex.adapters.registry import life_cycle
    from loraplex.platform.adapter_bytes import AdapterBytes, store_of

    async with context.database.reader() as session:
        deletions = await life_cycle.list_deletions(session)
    adapter_bytes = AdapterBytes(context.database, store_of(context.settings), lambda: context.now)
    for deletion in deletions:
        async with context.database.session() as session:
            finished = await life_cycle.finish(session, deletion, context.now)
        if finished is not None and finished.removal is not None:
            await adapter_bytes.remove(finished.removal)


def _change(
    name: str, change: Work, data_dir: Path | None, database_url: str | None
) -> "PublishedVersion":
    target = target_of(name, VERSION)
    number = target.version or 0

    async def work(context: CommandContext) -> "PublishedVersion":
        from loraplex.adapters.registry import registry

        async def change_it(
            session: "AsyncSession", act: "Act", adapter: "AdapterName"
        ) -> "PublishedVersion":
            await change(session, act, adapter, number)
            return await registry.get_version(session, adapter, number)

        return await changed(context, target, change_it)

    return run(work, data_dir, database_url)


def _tell(version: "PublishedVersion", what: str, *, as_json: bool) -> None:
    if as_json:
        rows: list[dict[str, Any]] = [row_of(version)]
        print_json(rows)
    else:
        typer.echo(f"{version.model}@{version.version} {what}.")
