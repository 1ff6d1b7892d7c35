"""`loraplex adapter retire | restore | pin | unpin | delete`: the life of versions.

Commands change the database. A gateway that runs learns of deletions by its next sweep.
"""

from collections.abc import Awaitable, Callable
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

    async def work(
        session: "AsyncSession", act: "Act", adapter: "AdapterName", number: int
    ) -> None:
        from loraplex.adapters.registry import life_cycle

        await life_cycle.retire(session, act, adapter, number, force=force)

    version = _change(name, work, data_dir, database_url)
    _tell(version, "is retired: no new request finds it", as_json=as_json)


def restore(
    name: Name, as_json: AsJson = False, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """Let requests find a retired version again."""

    async def work(
        session: "AsyncSession", act: "Act", adapter: "AdapterName", number: int
    ) -> None:
        from loraplex.adapters.registry import life_cycle

        await life_cycle.restore(session, act, adapter, number)

    _tell(_change(name, work, data_dir, database_url), "can be called", as_json=as_json)


def pin(
    name: Name, as_json: AsJson = False, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """Keep a version in the worker's memory, as far as the tenant's adapter_pin_bytes go."""

    async def work(
        session: "AsyncSession", act: "Act", adapter: "AdapterName", number: int
    ) -> None:
        from loraplex.adapters.registry import pins

        await pins.pin(session, act, adapter, number)

    _tell(_change(name, work, data_dir, database_url), "is pinned", as_json=as_json)


def unpin(
    name: Name, as_json: AsJson = False, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """Let a version be pushed out of the worker's memory again."""

    async def work(
        session: "AsyncSession", act: "Act", adapter: "AdapterName", number: int
    ) -> None:
        from loraplex.adapters.registry import pins

        await pins.unpin(session, act, adapter, number)

    _tell(_change(name, work, data_dir, database_url), "is not pinned", as_json=as_json)


def delete(
    name: Annotated[
        str,
        typer.Argument(
            metavar=f"{ADAPTER}[@VERSION|:ALIAS]",
            help="An adapter with all that it has, one version, or an alias.",
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="End the requests that run, and delete aliases.")
    ] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Delete an adapter, a version or an alias; bytes go when no request runs on them any more."""
    target = target_of(name, ADAPTER, VERSION, ALIAS)

    async def work(context: CommandContext) -> "list[PublishedVersion]":
        return await _delete(context, target, force=force)

    versions = run(work, data_dir, database_url)
    if as_json:
        print_json(row_of(version) for version in versions)
        return
    if target.alias is not None:
        typer.echo(f"{name} is deleted.")
    for version in versions:
        is_over = version.standing.status == "deleted"
        how = "deleted" if is_over else "being deleted: a gateway ends it when its requests end"
        typer.echo(f"{version.model}@{version.version} is {how}.")


async def _delete(
    context: CommandContext, target: "ModelName", *, force: bool
) -> "list[PublishedVersion]":
    """Begin the deletion, finish it where no gateway runs, and return what was deleted."""
    from loraplex.adapters.registry import aliases, life_cycle, registry

    async def begin(session: "AsyncSession", act: "Act", adapter: "AdapterName") -> "AdapterName":
        mode: life_cycle.Mode = "force" if force else "drain"
        if target.alias is not None:
            await aliases.delete_alias(session, act, adapter, target.alias)
        elif target.version is not None:
            await life_cycle.delete_version(session, act, adapter, target.version, mode)
        else:
            await life_cycle.delete_adapter(session, act, adapter, mode)
        return adapter

    adapter = await changed(context, target, begin)
    if target.alias is not None:
        return []
    await _finish(context)
    async with context.database.reader() as session:
        if target.version is not None:
            return [await registry.get_version(session, adapter, target.version)]
        return await registry.list_all_versions(session, adapter)


async def _finish(context: CommandContext) -> None:
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
