"""`DELETE /admin/v1/tenants/{tenant}`."""

from fastapi import APIRouter, Request
from fastapi.responses import Response
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.registry import tenant_deletion
from loraplex.platform.api.owner import act_of, tenant_of
from loraplex.platform.api.repeatable import Post
from loraplex.platform.api.views import TenantView
from loraplex.platform.deps import Admin, ServicesOf
from loraplex.platform.permissions import operator_may
from loraplex.tenants import directory
from loraplex.tenants.ids import Entropy

router = APIRouter(prefix="/admin/v1/tenants")


@router.delete(
    "/{tenant}",
    status_code=202,
    response_model=TenantView,
    tags=["tenants"],
    dependencies=[operator_may("tenants.write")],
)
async def delete_tenant(
    tenant: str, request: Request, admin: Admin, services: ServicesOf
) -> Response:
    """Delete a tenant with its keys, adapters and people. Requests that run are broken off; what
    was used stays in the ledger, under the tenant's id."""

    act = act_of(request, admin, services)

    async def work(session: AsyncSession, _entropy: Entropy) -> TenantView:
        found = await tenant_of(session, tenant)
        await tenant_deletion.begin(session, act, found.id)
        return TenantView.of(await directory.get(session, found.id))

    response = await Post(request, admin, services, status=202).serve(work)
    services.tenant_deletions.soon()
    return response
