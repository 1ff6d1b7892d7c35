"""`loraplex project`: the projects of a tenant."""

import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

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
    from loraplex.tenants.projects import ProjectRecord

app = typer.Typer(help="Projects of a tenant: they have keys, limits and models of their own.")

ProjectName = Annotated[str, typer.Argument(metavar="PROJECT", help="Name or id of the project.")]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", help="Its keys may call this alone, such as acme/support; repeat."),
]


@app.command()
def create(
    tenant: TenantName,
    name: Annotated[str, typer.Argument(help="1 to 40 characters of a-z, 0-9 and '-'.")],
    model: Models = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Add a project to a tenant."""

    async def work(context: CommandContext) -> "ProjectRecord":
        from loraplex.tenants import directory, projects

        models = tuple(model) if model else None
        async with context.database.session() as session:
            owner = await directory.get_by_name(session, tenant)
            return await projects.create(
                session, context.grantor(), owner.id, name, models, secrets.token_bytes
            )

    _show([run(work, data_dir, database_url)], as_json=as_json)


@app.command("list")
def list_(
    tenant: TenantName,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """List the projects of a tenant."""

    async def work(context: CommandContext) -> "list[ProjectRecord]":
        from loraplex.tenants import directory, projects

        async with context.database.reader() as session:
            owner = await directory.get_by_name(session, tenant)
            return await projects.list_projects(session, owner.id)

    _show(run(work, data_dir, database_url), as_json=as_json)


@app.command()
def rename(
    tenant: TenantName,
    project: ProjectName,
    name: Annotated[str, typer.Argument(help="Its new name.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Give a project another name; its id, keys and limits stay."""

    async def work(context: CommandContext) -> None:
        from loraplex.tenants import directory, projects

        async with context.database.session() as session:
            owner = await directory.get_by_name(session, tenant)
            await projects.rename(session, context.grantor(), owner.id, project, name)

    run(work, data_dir, database_url)
    typer.echo(f"Renamed project {project} to {name}.")


@app.command()
def models(
    tenant: TenantName,
    project: ProjectName,
    model: Models = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Say which models a project's keys may call; without any, all of the tenant's."""

    async def work(context: CommandContext) -> None:
        from loraplex.tenants import directory, projects

        allowed = tuple(model) if model else None
        async with context.database.session() as session:
            owner = await directory.get_by_name(session, tenant)
            await projects.set_models(session, context.grantor(), owner.id, project, allowed)

    run(work, data_dir, database_url)
    typer.echo(f"The keys of {project} may call {', '.join(model) if model else 'all models'}.")


@app.command()
def archive(
    tenant: TenantName,
    project: ProjectName,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Refuse the keys of a project until it is restored."""
    _set_status(tenant, project, "archived", data_dir, database_url)
    typer.echo(f"Archived project {project}: its keys are refused from now on.")


@app.command()
def restore(
    tenant: TenantName,
    project: ProjectName,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Accept the keys of an archived project again."""
    _set_status(tenant, project, "active", data_dir, database_url)
    typer.echo(f"Restored project {project}: its keys are accepted again.")


def _set_status(
    tenant: str,
    project: str,
    status: Literal["active", "archived"],
    data_dir: DataDir,
    database_url: DatabaseUrl,
) -> None:
    async def work(context: CommandContext) -> None:
        from loraplex.tenants import directory, projects

        async with context.database.session() as session:
            owner = await directory.get_by_name(session, tenant)
            await projects.set_status(session, context.grantor(), owner.id, project, status)

    run(work, data_dir, database_url)


def _show(found: "list[ProjectRecord]", *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(project) for project in found)
        return
    print_table(
        ("ID", "NAME", "STATUS", "MODELS", "CREATED"),
        (
            (
                p.id,
                p.name,
                p.status,
                "all" if p.models is None else ", ".join(p.models),
                p.created_at,
            )
            for p in found
        ),
        empty="The tenant has no projects.",
    )
