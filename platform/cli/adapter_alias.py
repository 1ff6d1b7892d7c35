"""`loraplex adapter alias | rollback | canary`: names that move between versions."""

from typing import TYPE_CHECKING, Annotated

import typer

from loraplex.platform.cli.adapter_target import (
    ALIAS,
    alias_row_of,
    changed,
    described,
    target_of,
    version_of,
)
from loraplex.platform.cli.context import AsJson, CommandContext, DatabaseUrl, DataDir, run
from loraplex.platform.cli.output import print_json

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from loraplex.adapters.registry.aliases import Alias
    from loraplex.adapters.registry.names import AdapterName
    from loraplex.tenants.audit import Act

Name = Annotated[str, typer.Argument(metavar=ALIAS, help="The alias.")]


def alias(
    name: Name,
    version: Annotated[str, typer.Argument(metavar="@VERSION", help="What it is to mean.")],
    expected: Annotated[
        int | None,
        typer.Option(min=0, help="Only if it means this version now; 0: only if it is absent."),
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Let an alias mean a version from the next request on; made if it is absent."""
    target, number = target_of(name, ALIAS), version_of(version)

    async def work(context: CommandContext) -> "Alias":
        from loraplex.adapters.registry import aliases

        async def point(session: "AsyncSession", act: "Act", adapter: "AdapterName") -> "Alias":
            return await aliases.point(session, act, adapter, target.alias or "", number, expected)

        return await changed(context, target, point)

    _tell(run(work, data_dir, database_url), as_json=as_json)


def rollback(
    name: Name, as_json: AsJson = False, data_dir: DataDir = None, database_url: DatabaseUrl = None
) -> None:
    """Let an alias mean again what it meant before."""
    target = target_of(name, ALIAS)

    async def work(context: CommandContext) -> "Alias":
        from loraplex.adapters.registry import aliases

        async def roll_back(session: "AsyncSession", act: "Act", adapter: "AdapterName") -> "Alias":
            return await aliases.roll_back(session, act, adapter, target.alias or "")

        return await changed(context, target, roll_back)

    _tell(run(work, data_dir, database_url), as_json=as_json)


def canary(
    name: Name,
    version: Annotated[
        str | None, typer.Argument(metavar="@VERSION", help="What a part of requests runs on.")
    ] = None,
    percent: Annotated[
        int | None, typer.Argument(metavar="PERCENT", min=1, max=100, help="Of requests.")
    ] = None,
    promote: Annotated[
        bool, typer.Option("--promote", help="Let the alias mean the canary's version.")
    ] = False,
    clear: Annotated[bool, typer.Option("--clear", help="End the canary.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Let a part of an alias's requests run on another version; or end that, one way or other."""
    target = target_of(name, ALIAS)
    is_set = version is not None and percent is not None
    if [is_set, promote, clear].count(True) != 1 or (version is not None and not is_set):
        raise typer.BadParameter("name @VERSION and PERCENT, or --promote, or --clear.")

    async def work(context: CommandContext) -> "Alias":
        from loraplex.adapters.registry import aliases

        async def change(session: "AsyncSession", act: "Act", adapter: "AdapterName") -> "Alias":
            named = target.alias or ""
            if version is not None and percent is not None:
                wanted = aliases.Canary(version_of(version), percent)
                return await aliases.set_canary(session, act, adapter, named, wanted)
            end = aliases.promote if promote else aliases.clear_canary
            return await end(session, act, adapter, named)

        return await changed(context, target, change)

    _tell(run(work, data_dir, database_url), as_json=as_json)


def _tell(alias: "Alias", *, as_json: bool) -> None:
    if as_json:
        print_json([alias_row_of(alias)])
    else:
        typer.echo(described(alias))
