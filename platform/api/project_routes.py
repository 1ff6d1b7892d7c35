"""Routes of a tenant's projects. For both APIs."""

from typing import Annotated, Literal

import fastapi
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.platform.api.bodies import Schema, parse_exactly, request_body_of
from loraplex.platform.api.owner import ResourceOwner, Side
from loraplex.platform.api.paging import Listing, Page, listing
from loraplex.platform.api.repeatable import Post
from loraplex.platform.api.tenancy_views import ProjectView
from loraplex.platform.deps import ServicesOf, body_of
from loraplex.platform.services import Services
from loraplex.tenants import projects
from loraplex.tenants.ids import Entropy

PROJECT = "/projects/{project}"


class ProjectBody(Schema):
    """A new project."""

    name: str
    models: list[str] | None = None
    """That its keys may call; null allows all of the tenant's."""


class ProjectChangeBody(Schema):
    """What changes of a project; what is absent stays as it is."""

    name: str = ""
    models: list[str] | None = None
    """Null allows all of the tenant's."""


def project_routes(side: Side) -> APIRouter:
    """The routes, of whoever `side` says."""
    router = APIRouter(tags=["projects"])
    _add_reading(router, side)
    _add_writing(router, side)
    for verb, status in (("archive", "archived"), ("restore", "active")):
        _add_status(router, side, verb, "archived" if status == "archived" else "active")
    return router


def _add_reading(router: APIRouter, side: Side) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type

    @router.get("/projects", dependencies=[side.may("projects.read")])
    async def list_projects(
        owner: Owner, services: ServicesOf, page: Annotated[Page, fastapi.Query()]
    ) -> Listing[ProjectView]:
        """List the tenant's projects, oldest first."""
        async with services.resources.database.reader() as session:
            found = await projects.list_projects(session, owner.tenant_id)
        return listing([ProjectView.of(project) for project in found], page)

    @router.get(PROJECT, dependencies=[side.may("projects.read")])
    async def retrieve_project(project: str, owner: Owner, services: ServicesOf) -> ProjectView:
        """Show a project, found by name or id."""
        async with services.resources.database.reader() as session:
            return ProjectView.of(await projects.get(session, owner.tenant_id, project))


def _add_writing(router: APIRouter, side: Side) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type

    @router.post(
        "/projects",
        status_code=201,
        response_model=ProjectView,
        openapi_extra=request_body_of(ProjectBody),
        dependencies=[side.may("projects.write")],
    )
    async def create_project(request: Request, owner: Owner, services: ServicesOf) -> Response:
        """Add a project to the tenant."""
        asked = parse_exactly(await body_of(request), ProjectBody)
        grantor = owner.grantor(services)
        models = None if asked.models is None else tuple(asked.models)

        async def work(session: AsyncSession, entropy: Entropy) -> ProjectView:
            return ProjectView.of(
                await projects.create(
                    session, grantor, owner.tenant_id, asked.name, models, entropy
                )
            )

        return await Post(request, owner.sender, services).serve(work)

    @router.patch(
        PROJECT,
        response_model=ProjectView,
        openapi_extra=request_body_of(ProjectChangeBody),
        dependencies=[side.may("projects.write")],
    )
    async def change_project(
        project: str, request: Request, owner: Owner, services: ServicesOf
    ) -> Response:
        """Rename a project, or say which models its keys may call, from their next request on."""
        asked = parse_exactly(await body_of(request), ProjectChangeBody)

        async def work(session: AsyncSession, _entropy: Entropy) -> ProjectView:
            return await _changed(session, owner, project, asked, services)

        return await Post(request, owner.sender, services, status=200).serve(work)


async def _changed(
    session: AsyncSession,
    owner: ResourceOwner,
    named: str,
    asked: ProjectChangeBody,
    services: Services,
) -> ProjectView:
    grantor = owner.grantor(services)
    project_id = (await projects.get(session, owner.tenant_id, named)).id
    if "name" in asked.model_fields_set:
        await projects.rename(session, grantor, owner.tenant_id, project_id, asked.name)
    if "models" in asked.model_fields_set:
        models = None if asked.models is None else tuple(asked.models)
        await projects.set_models(session, grantor, owner.tenant_id, project_id, models)
    return ProjectView.of(await projects.get(session, owner.tenant_id, project_id))


def _add_status(
    router: APIRouter, side: Side, verb: str, status: Literal["active", "archived"]
) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type
    what = (
        "Refuse the keys of a project until it is restored."
        if status == "archived"
        else "Accept the keys of an archived project again."
    )

    @router.post(
        f"{PROJECT}/{verb}",
        response_model=ProjectView,
        dependencies=[side.may("projects.write")],
        name=f"{verb}_project",
        description=what,
    )
    async def set_project_status(
        project: str, request: Request, owner: Owner, services: ServicesOf
    ) -> Response:
        grantor = owner.grantor(services)

        async def work(session: AsyncSession, _entropy: Entropy) -> ProjectView:
            return ProjectView.of(
                await projects.set_status(session, grantor, owner.tenant_id, project, status)
            )

        return await Post(request, owner.sender, services, status=200).serve(work)
