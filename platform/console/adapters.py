"""A tenant's adapters: all versions, and a form that publishes the next."""

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect
from starlette.responses import RedirectResponse

from loraplex.adapters.errors import CheckpointInvalid
from loraplex.adapters.registry import registry
from loraplex.adapters.registry.errors import VersionConflict
from loraplex.platform.console.access import CSRF_FIELD, Form, SignedIn, check_origin, check_token
from loraplex.platform.console.pages import render
from loraplex.platform.console.route import ConsoleRoute
from loraplex.platform.console.sessions import Notice
from loraplex.platform.deps import ServicesOf
from loraplex.platform.errors import ClientGone, InvalidRequest
from loraplex.platform.receiving import received
from loraplex.platform.services import Services
from loraplex.platform.uploads import publish
from loraplex.tenants import directory
from loraplex.tenants.errors import NameInvalid

router = APIRouter(route_class=ConsoleRoute)

REFUSALS = (CheckpointInvalid, InvalidRequest, NameInvalid, VersionConflict)


@router.get("/tenants/{name}/adapters")
async def show_adapters(
    name: str, request: Request, _session: SignedIn, services: ServicesOf
) -> Response:
    """All versions of all adapters."""
    return await _page(request, services, name)


@router.post("/tenants/{name}/adapters")
async def upload_adapter(
    name: str, request: Request, session: SignedIn, services: ServicesOf
) -> Response:
    """Check the two files of a checkpoint, store them, publish them as the newest version."""
    check_origin(request.headers)
    resources = services.resources
    async with resources.database.reader() as reader:
        tenant = await directory.get_by_name(reader, name)
    content_type, fields = request.headers.get("content-type", ""), (CSRF_FIELD, "name")
    try:
        async with received(resources.settings, content_type, request.stream(), fields) as upload:
            form = Form(upload.fields)
            check_token(form, session)
            version = await publish(
                resources, tenant.id, form.text("name"), upload.folder, session.key_id
            )
    except ClientDisconnect:
        raise ClientGone from None
    except REFUSALS as error:
        return await _page(request, services, name, _problems(error))
    session.notice = Notice(f"{version.model}@{version.version} is published and can be called.")
    return RedirectResponse(f"/console/tenants/{name}/adapters", 303)


async def _page(
    request: Request, services: Services, name: str, problems: Sequence[str] = ()
) -> Response:
    async with services.resources.database.reader() as session:
        tenant = await directory.get_by_name(session, name)
        versions = await registry.list_versions(session, tenant.id)
    return render(
        request,
        "adapters.html",
        400 if problems else 200,
        tenant=tenant,
        versions=versions,
        num_adapters=len({version.model for version in versions}),
        problems=problems,
    )


def _problems(error: Exception) -> tuple[str, ...]:
    return (
        tuple(map(str, error.problems)) if isinstance(error, CheckpointInvalid) else (str(error),)
    )
