"""`/v1/projects`, `/v1/keys`, `/v1/members` and limits: a tenant's own, with its keys."""

from fastapi import APIRouter, Depends

from loraplex.platform.api.key_routes import key_routes
from loraplex.platform.api.limit_routes import limit_routes
from loraplex.platform.api.member_routes import member_routes
from loraplex.platform.api.owner import TENANTS
from loraplex.platform.api.project_routes import project_routes
from loraplex.platform.api.unread import refuse_unread
from loraplex.platform.deps import principal_of

router = APIRouter(prefix="/v1", dependencies=[Depends(principal_of), Depends(refuse_unread)])
for routes in (
    project_routes(TENANTS),
    key_routes(TENANTS),
    limit_routes(TENANTS),
    member_routes(TENANTS),
):
    router.include_router(routes)
