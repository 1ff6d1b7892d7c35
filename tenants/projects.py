"""Projects: parts of a tenant that have keys, limits and an allow-list of models of their own."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants import audit
from loraplex.tenants.dialects import insert_unless_there, lock_text
from loraplex.tenants.errors import ProjectExists, ProjectNotFound, ProjectProtected, ValueRefused
from loraplex.tenants.ids import Entropy, check_slug, new_id
from loraplex.tenants.key_scopes import (
    Grantor,
    Models,
    check_models,
    check_models_within,
    read_list,
    stored,
)
from loraplex.tenants.tables import Project

DEFAULT = "default"
"""The project that every tenant has, and that keys belong to where none is named."""


@dataclass(frozen=True, slots=True)
class ProjectRecord:
    """A project as it stands in the database."""

    id: str
    tenant_id: str
    name: str
    status: str
    """`active` or `archived`."""
    models: Models
    """That its keys may call; None allows all of the tenant's."""
    created_at: datetime


def default_project_id(tenant_id: str) -> str:
    """Return the id of a tenant's default project, which follows from the tenant's."""
    return f"prj_{tenant_id.removeprefix('tnt_')}"


async def add_default(session: AsyncSession, tenant_id: str, now: datetime) -> None:
    """Give a new tenant its default project."""
    session.add(
        Project(
            id=default_project_id(tenant_id),
            tenant_id=tenant_id,
            name=DEFAULT,
            status="active",
            created_at=now,
        )
    )
    await session.flush()


async def create(
    session: AsyncSession,
    grantor: Grantor,
    tenant_id: str,
    name: str,
    models: Models,
    entropy: Entropy,
) -> ProjectRecord:
    """Add a project to a tenant.

    Raises:
        NameInvalid: the name is not a slug.
        ProjectExists: the name is taken.
        ValueRefused: an entry of the models cannot be one.
        ExceedsParent: whoever makes it may not call all of the models.
    """
    check_slug(name, "The project's name")
    _check_allow_list(grantor, models)
    insert = insert_unless_there(
        session,
        Project,
        "tenant_id",
        "name",
        id=new_id("prj", grantor.act.at, entropy),
        tenant_id=tenant_id,
        name=name,
        status="active",
        models=stored(models),
        created_at=grantor.act.at,
    )
    row = await session.scalar(insert.returning(Project))
    if row is None:
        raise _taken(name)
    detail = {"models": _shown(models)}
    await audit.append(session, grantor.act, tenant_id, "project.create", name, detail)
    return record_of(row)


async def get(session: AsyncSession, tenant_id: str, named: str) -> ProjectRecord:
    """Return a project of the tenant, by id or name.

    Raises:
        ProjectNotFound: it has no such project.
    """
    return record_of(await get_row(session, tenant_id, named))


async def list_projects(session: AsyncSession, tenant_id: str) -> list[ProjectRecord]:
    """Return the tenant's projects, oldest first."""
    query = select(Project).where(Project.tenant_id == tenant_id)
    rows = await session.scalars(query.order_by(Project.created_at, Project.id))
    return [record_of(row) for row in rows]


async def rename(
    session: AsyncSession, grantor: Grantor, tenant_id: str, named: str, name: str
) -> ProjectRecord:
    """Give a project another name; its id, keys and limits stay.

    Raises:
        ProjectNotFound: the tenant has no such project.
        ProjectProtected: it is the default project.
        NameInvalid, ProjectExists: of the new name.
    """
    row = await get_row(session, tenant_id, named, locked=True)
    if name == row.name:
        return record_of(row)
    _check_not_default(row)
    check_slug(name, "The project's name")
    await lock_text(session, f"project names of {tenant_id}")
    taken = select(Project.id).where(Project.tenant_id == tenant_id, Project.name == name)
    if await session.scalar(taken) is not None:
        raise _taken(name)
    detail = {"name": {"from": row.name, "to": name}}
    row.name = name
    await session.flush()
    await audit.append(session, grantor.act, tenant_id, "project.rename", name, detail)
    return record_of(row)


async def set_models(
    session: AsyncSession, grantor: Grantor, tenant_id: str, named: str, models: Models
) -> ProjectRecord:
    """Say which models the project's keys may call, from their next request on.

    Raises:
        ProjectNotFound: the tenant has no such project.
        ValueRefused: an entry cannot be one.
        ExceedsParent: whoever changes it may not call all of the models.
    """
    row = await get_row(session, tenant_id, named, locked=True)
    _check_allow_list(grantor, models)
    before = read_list(row.models)
    if models != before:
        row.models = stored(models)
        await session.flush()
        detail = {"models": {"from": _shown(before), "to": _shown(models)}}
        await audit.append(session, grantor.act, tenant_id, "project.models", row.name, detail)
    return record_of(row)


async def set_status(
    session: AsyncSession,
    grantor: Grantor,
    tenant_id: str,
    named: str,
    status: Literal["active", "archived"],
) -> ProjectRecord:
    """Archive a project, whose keys are refused while it is, or make it active again.

    Raises:
        ProjectNotFound: the tenant has no such project.
        ProjectProtected: it is the default project.
    """
    row = await get_row(session, tenant_id, named, locked=True)
    _check_not_default(row)
    if row.status != status:
        row.status = status
        await session.flush()
        action = "project.archive" if status == "archived" else "project.restore"
        await audit.append(session, grantor.act, tenant_id, action, row.name)
    return record_of(row)


async def get_row(
    session: AsyncSession, tenant_id: str, named: str, *, locked: bool = False
) -> Project:
    """Return the row of a project of the tenant, by id or name.

    Raises:
        ProjectNotFound: it has no such project.
    """
    query = select(Project).where(
        Project.tenant_id == tenant_id, or_(Project.id == named, Project.name == named)
    )
    if locked:
        query = query.with_for_update(key_share=True).execution_options(populate_existing=True)
    row = (await session.scalars(query)).one_or_none()
    if row is None:
        raise ProjectNotFound(f"The tenant has no project {named[:60]!r}.")
    return row


def check_active(row: Project) -> None:
    """Raises ProjectProtected where the project is archived."""
    if row.status != "active":
        raise ProjectProtected(f"The project {row.name} is archived; restore it first.")


def record_of(row: Project) -> ProjectRecord:
    """Return what the row of a project says."""
    return ProjectRecord(
        id=row.id,
        tenant_id=row.tenant_id,
        name=row.name,
        status=row.status,
        models=read_list(row.models),
        created_at=row.created_at,
    )


def _check_allow_list(grantor: Grantor, models: Models) -> None:
    if models is not None and not models:
        raise ValueRefused(
            "models: an empty list would allow none; leave it out, or archive the project.",
            "models",
        )
    check_models(models)
    check_models_within(models, grantor.models, "your key", nothing_is_all=True)


def _check_not_default(row: Project) -> None:
    if row.id == default_project_id(row.tenant_id):
        raise ProjectProtected(
            "The default project keeps its name and stays active; suspend the tenant, or use "
            "another project."
        )


def _taken(name: str) -> ProjectExists:
    return ProjectExists(f"The tenant has a project named {name} already.")


def _shown(models: Models) -> list[str] | None:
    return None if models is None else list(models)
