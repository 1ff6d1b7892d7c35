"""`loraplex adapter list | show`: what a tenant has."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from loraplex.platform.cli.adapter_target import (
    ADAPTER,
    alias_row_of,
    described,
    naming_absent,
    row_of,
    target_of,
)
from loraplex.platform.cli.context import (
    AsJson,
    CommandContext,
    DatabaseUrl,
    DataDir,
    TenantName,
    run,
)
from loraplex.platform.cli.output import print_json, print_table

if TYPE_CHECKING:
    from loraplex.adapters.registry.aliases import Alias
    from loraplex.adapters.registry.registry import PublishedVersion


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
        print_json(row_of(version) for version in versions)
        return
    _print(
        versions,
        f"The tenant has no adapters; add one with: loraplex adapter push {tenant}/NAME DIR",
    )


def show(
    name: Annotated[str, typer.Argument(metavar=ADAPTER, help="The adapter.")],
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Show an adapter: its versions, deleted ones too, and its aliases."""
    target = target_of(name, ADAPTER)

    async def work(context: CommandContext) -> "tuple[list[PublishedVersion], list[Alias]]":
        from loraplex.adapters.registry import aliases, registry
        from loraplex.adapters.registry.names import AdapterName
        from loraplex.tenants import directory

        async with context.database.reader() as session:
            owner = await directory.get_by_name(session, target.tenant)
            adapter = AdapterName(owner.id, target.adapter)
            with naming_absent(target.tenant):
                versions = await registry.list_all_versions(session, adapter)
            return versions, await aliases.list_aliases(session, owner.id, target.adapter)

    versions, named = run(work, data_dir, database_url)
    if as_json:
        shown: dict[str, Any] = {
            "model": name,
            "versions": [row_of(version) for version in versions],
            "aliases": [alias_row_of(alias) for alias in named],
        }
        print_json([shown])
        return
    _print(versions, "")
    for alias in named:
        typer.echo(described(alias))


def _print(versions: "list[PublishedVersion]", empty: str) -> None:
    print_table(
        (
            "MODEL",
            "VERSION",
            "STATUS",
            "RANK",
            "BYTES",
            "BASE MODEL",
            "CREATED",
            "SELF-TEST",
            "DIGEST",
        ),
        (
            (
                *(v.model, v.version, _status(v), v.rank, v.num_bytes),
                *(v.base_model, v.created_at, _self_test(v), v.digest),
            )
            for v in versions
        ),
        empty=empty,
    )


def _self_test(version: "PublishedVersion") -> str:
    report = version.self_test
    return "not run" if report is None else f"passed ({report['method']})"


def _status(version: "PublishedVersion") -> str:
    standing = version.standing
    if standing.deletion is not None:
        return "deleting"
    return f"{standing.status}, pinned" if standing.is_pinned else standing.status
