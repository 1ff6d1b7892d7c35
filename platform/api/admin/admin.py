"""`/admin/v1`: all that an operator does, over HTTP. Every route asks for an admin key."""

from typing import Any

from fastapi import APIRouter, Depends
from fastapi.security import HTTPBearer

from loraplex.platform.api.admin import adapters, requests, residency, tenants, usage
from loraplex.platform.api.unread import refuse_unread
from loraplex.platform.api.views import ProblemView
from loraplex.platform.deps import admin_of


def _problem(description: str) -> dict[str, Any]:
    content: dict[str, Any] = {"application/problem+json": {}}
    return {"model": ProblemView, "content": content, "description": description}


router = APIRouter(
    # The last is for the documentation alone: the first refuses.
    dependencies=[
        Depends(admin_of),
        Depends(refuse_unread),
        Depends(HTTPBearer(scheme_name="adminKey", auto_error=False)),
    ],
    responses={
        400: _problem("A parameter or a field of the body is wrong."),
        401: _problem("No admin key, or one that is not accepted."),
        403: _problem("A tenant's key."),
    },
)
router.include_router(tenants.router)
router.include_router(adapters.router)
router.include_router(usage.router)
router.include_router(requests.router)
router.include_router(residency.router)
