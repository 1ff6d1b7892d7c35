"""A tenant's adapters: all versions, and a form that publishes the next."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from starlette.requests import ClientDisconnect

from loraplex.adapters.errors import CheckpointInvalid
from loraplex.adapters.registry import registry
from loraplex.adapters.registry.errors import VersionConflict
from loraplex.platform.console.access import CSRF_FIELD, Form, check_origin, check_token
from loraplex.platform.console.pages import lead_to, render
from loraplex.platform.console.permissions import Inside, Place
from loraplex.platform.console.route import ConsoleRoute
from loraplex.platform.deps import ServicesOf
from loraplex.platform.errors import ClientGone, InvalidRequest
from loraplex.platform.receiving import received
from loraplex.platform.services import Services
from loraplex.platform.uploads import publish
from loraplex.tenants.errors import NameInvalid

router = APIRouter(route_class=ConsoleRoute)

REFUSALS = (CheckpointInvalid, InvalidRequest, NameInvalid, VersionConflict)


@router.get("/tenants/{name}/adapters")
async def show_adapters(
    place: Annotated[Place, Depends(Inside("adapters.read"))],
    request: Request,
    services: ServicesOf,
) -> Response:
    """All versions of all adapters."""
    return await _page(request, services, place)


@router.post("/tenants/{name}/adapters")
async def upload_adapter(
    place: Annotated[Place, Depends(Inside("adapters.write"))],
    request: Request,
    services: ServicesOf,
) -> Response:
    """Check the two files of a checkpoint, store them, publish them as the newest version."""
    check_origin(request.headers)
    resources, tenant, session = services.resources, place.tenant, place.session
    content_type, fields = request.headers.get("content-type", ""), (CSRF_FIELD, "name")
    try:
        async with received(resources.settings, content_type, request.stream(), fields) as upload:
            form = Form(upload.fields)
            check_token(form, session)
            version = await publish(
                resources, tenant.id, form.text("name"), upload.folder, session.actor
            )
    except ClientDisconnect:
        raise ClientGone from None
    except REFUSALS as error:
        return await _page(request, services, place, _problems(error))
    done = f"{version.model}@{version.version} is published and can be called."
    return lead_to(request, f"/console/tenants/{tenant.name}/adapters", done)


async def _page(
    request: Request, services: Services, place: Place, problems: Sequence[str] = ()
) -> Response:
    async with services.resources.database.reader() as session:
        versions = await registry.list_versions(session, place.tenant.id)
    return render(
        request,
        "adapters.html",
        400 if problems else 200,
        place=place,
        versions=versions,
        num_adapters=len({version.model for version in versions}),
        problems=problems,
    )


def _problems(error: Exception) -> tuple[str, ...]:
    return (
        tuple(map(str, error.problems)) if isinstance(error, CheckpointInvalid) else (str(error),)
    )
