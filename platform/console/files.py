"""Serves styles, scripts and the icon; they are no secret."""

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from loraplex.platform.console.composition import console_of
from loraplex.platform.console.route import ConsoleRoute

router = APIRouter(route_class=ConsoleRoute)

FOREVER = "public, max-age=31536000, immutable"


@router.get("/static/{name}")
async def get_asset(name: str, request: Request) -> Response:
    """One file; browsers may keep what they asked for by its version."""
    asset = console_of(request).assets.files.get(name)
    if asset is None:
        raise HTTPException(404)
    keep = FOREVER if request.query_params.get("v") == asset.version else "no-cache"
    return Response(asset.body, media_type=asset.media_type, headers={"cache-control": keep})
