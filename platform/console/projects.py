"""A tenant's projects: parts of it with keys, limits and models of their own."""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response

from loraplex.platform.console.access import OwnForm
from loraplex.platform.console.keys import entries, state_of
from loraplex.platform.console.pages import lead_to, render
from loraplex.platform.console.permissions import Inside, Place
from loraplex.platform.console.route import ConsoleRoute
from loraplex.platform.deps import ServicesOf
from loraplex.platform.services import Services
from loraplex.tenants import api_keys, projects
from loraplex.tenants.errors import NameInvalid, ProjectExists, ProjectProtected, ValueRefused

router = APIRouter(route_class=ConsoleRoute, prefix="/tenants/{name}/projects")

Status = Literal["active", "archived"]
SeesProjects = Annotated[Place, Depends(Inside("projects.read"))]
ChangesProjects = Annotated[Place, Depends(Inside("projects.write"))]


@router.get("")
async def show_projects(place: SeesProjects, request: Request, services: ServicesOf) -> Response:
    """All projects, and a form for one more."""
    return await _page(request, services, place)


@router.post("")
async def create_project(
    place: ChangesProjects, request: Request, form: OwnForm, services: ServicesOf
) -> Response:
    """Add a project."""
    name, models = form.text("name"), form.text("models")
    resources = services.resources
    typed = {"name": name, "models": models}
    try:
        async with resources.database.session() as transaction:
            await projects.create(
                transaction,
                place.grantor(services.now()),
                place.tenant.id,
                name,
                entries(models),
                resources.entropy,
            )
    except (NameInvalid, ProjectExists) as error:
        return await _page(request, services, place, typed, {"name": str(error)})
    except ValueRefused as error:
        return await _page(request, services, place, typed, {error.field: str(error)})
    return lead_to(request, _home(place), f"The project {name} was created.")


@router.get("/{project}")
async def show_project(
    place: SeesProjects, project: str, request: Request, services: ServicesOf
) -> Response:
    """One project, and forms that change it."""
    return await _one(request, services, place, project)


@router.post("/{project}/models")
async def set_models(
    place: ChangesProjects, project: str, request: Request, form: OwnForm, services: ServicesOf
) -> Response:
    """Say which models its keys may call; nothing typed allows all."""
    models, grantor = entries(form.text("models")), place.grantor(services.now())
    try:
        async with services.resources.database.session() as transaction:
            await projects.set_models(transaction, grantor, place.tenant.id, project, models)
    except ValueRefused as error:
        return await _one(request, services, place, project, {error.field: str(error)})
    done = "The models were saved. They hold from the next request on."
    return lead_to(request, f"{_home(place)}/{project}", done)


@router.post("/{project}/status")
async def set_status(
    place: ChangesProjects, project: str, request: Request, form: OwnForm, services: ServicesOf
) -> Response:
    """Archive it, or make it active again, once its name was typed."""
    if form.text("confirm") != project:
        errors = {"confirm": f"Type {project} to confirm; nothing was changed."}
        return await _one(request, services, place, project, errors)
    grantor = place.grantor(services.now())
    try:
        async with services.resources.database.session() as transaction:
            current = await projects.get(transaction, place.tenant.id, project)
            wanted: Status = "archived" if current.status == "active" else "active"
            await projects.set_status(transaction, grantor, place.tenant.id, project, wanted)
    except ProjectProtected as error:
        return await _one(request, services, place, project, {"confirm": str(error)})
    return lead_to(request, f"{_home(place)}/{project}", f"{project} is {wanted} now.")


def _home(place: Place) -> str:
    return f"/console/tenants/{place.tenant.name}/projects"


async def _page(
    request: Request,
    services: Services,
    place: Place,
    typed: Mapping[str, str] | None = None,
    errors: Mapping[str, str] | None = None,
) -> Response:
    async with services.resources.database.reader() as session:
        found = await projects.list_projects(session, place.tenant.id)
        keys = await api_keys.list_keys(session, place.tenant.id)
    return render(
        request,
        "projects.html",
        400 if errors else 200,
        place=place,
        projects=found,
        num_keys=Counter(k.project for k in keys if state_of(k, services) == "active"),
        typed=typed or {"name": "", "models": ""},
        errors=errors or {},
    )


async def _one(
    request: Request,
    services: Services,
    place: Place,
    project: str,
    errors: Mapping[str, str] | None = None,
) -> Response:
    async with services.resources.database.reader() as session:
        found = await projects.get(session, place.tenant.id, project)
        keys = await api_keys.list_keys(session, place.tenant.id, found.id)
    return render(
        request,
        "project.html",
        400 if errors else 200,
        place=place,
        project=found,
        is_default=found.id == projects.default_project_id(place.tenant.id),
        keys=[(key, state_of(key, services)) for key in keys],
        errors=errors or {},
    )
