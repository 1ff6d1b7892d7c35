"""All routes of the console."""

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from loraplex.platform.console import (
    adapters,
    files,
    keys,
    overview,
    playground,
    sign_in,
    tenant,
    tenants,
    usage,
)
from loraplex.platform.console.access import SignedIn
from loraplex.platform.console.route import ConsoleRoute

_elsewhere = APIRouter(route_class=ConsoleRoute)


@_elsewhere.get("/{path:path}")
async def show_nothing(path: str, request: Request, _session: SignedIn) -> Response:  # noqa: ARG001
    """A page that says that there is none."""
    raise HTTPException(404)


router = APIRouter(include_in_schema=False)
for _part in (files, sign_in, overview, tenants, tenant, keys, adapters, usage, playground):
    router.include_router(_part.router, prefix="/console")
router.include_router(_elsewhere, prefix="/console")
