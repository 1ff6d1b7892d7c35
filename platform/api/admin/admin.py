"""`/admin/v1`: all that an operator does, over HTTP. Every route asks for an admin key."""

from typing import Any

from fastapi import APIRouter, Depends
from fastapi.security import HTTPBearer

from loraplex.platform.api.admin import (
    adapters,
    admin_keys,
    audit,
    budgets,
    people,
    requests,
    residency,
    tenant_deletion,
    tenants,
    usage,
)
from loraplex.platform.api.key_routes import key_routes
from loraplex.platform.api.limit_routes import limit_routes, tenant_limit_routes
from loraplex.platform.api.limits import operators_router
from loraplex.platform.api.member_routes import member_routes
from loraplex.platform.api.owner import OPERATORS
from loraplex.platform.api.project_routes import project_routes
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
        403: _problem("A tenant's key, or one whose role has no permission for it."),
    },
)
router.include_router(tenants.router)
router.include_router(tenant_deletion.router)
for routes in (
    project_routes(OPERATORS),
    key_routes(OPERATORS),
    limit_routes(OPERATORS),
    tenant_limit_routes(OPERATORS),
    member_routes(OPERATORS),
    operators_router,
):
    router.include_router(routes, prefix="/admin/v1/tenants/{tenant}")
router.include_router(admin_keys.router)
router.include_router(people.router)
router.include_router(adapters.router)
router.include_router(audit.router)
router.include_router(budgets.router)
router.include_router(usage.router)
router.include_router(requests.router)
router.include_router(residency.router)
