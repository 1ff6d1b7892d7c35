"""All routes of the console."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException

from loraplex.platform.console import (
    account,
    adapters,
    audit,
    files,
    keys,
    limits,
    members,
    memory,
    oidc_sign_in,
    overview,
    people,
    playground,
    projects,
    sign_in,
    tenant,
    tenants,
    usage,
)
from loraplex.platform.console.access import SignedIn
from loraplex.platform.console.route import ConsoleRoute

_elsewhere = APIRouter(route_class=ConsoleRoute)


@_elsewhere.get("/{path:path}")
async def show_nothing(path: str, request: Request, _session: SignedIn) -> Response:  # noqa: ARG001  asked for to be signed in
    """A page that says that there is none."""
    raise HTTPException(404)


router = APIRouter(include_in_schema=False)


@router.get("/")
async def show_console() -> Response:
    """What a person who opens the printed address wants to see."""
    return RedirectResponse("/console", status_code=307)


for _part in (
    *(files, sign_in, oidc_sign_in, account, overview, memory, people, audit),
    *(tenants, tenant, projects, keys, limits, members, adapters, usage, playground),
):
    router.include_router(_part.router, prefix="/console")
router.include_router(_elsewhere, prefix="/console")
