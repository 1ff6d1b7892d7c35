"""`/admin/v1/tenants/{tenant}/adapters/…`: a tenant's adapters, as it sees them; the audit log."""

from typing import Annotated

import fastapi
from fastapi import APIRouter

from loraplex.platform.api.adapter_aliases import alias_routes
from loraplex.platform.api.adapter_owner import AdapterOwner
from loraplex.platform.api.adapter_versions import version_routes
from loraplex.platform.api.adapter_views import AuditEventView
from loraplex.platform.api.admin.tenants import tenant_of
from loraplex.platform.api.audit import AuditQuery, page_of_events
from loraplex.platform.api.paging import Listing
from loraplex.platform.deps import Admin, ServicesOf

router = APIRouter()
PREFIX = "/admin/v1/tenants/{tenant}/adapters"


class AllAuditQuery(AuditQuery):
    """Which events are listed."""

    tenant: str | None = None


async def tenant_owns(tenant: str, admin: Admin, services: ServicesOf) -> AdapterOwner:
    """The tenant of the path, and the operator. Raises TenantNotFound."""
    async with services.resources.database.reader() as session:
        owner = await tenant_of(session, tenant)
    return AdapterOwner(owner.id, admin.key_id)


router.include_router(version_routes(tenant_owns), prefix=PREFIX)
router.include_router(alias_routes(tenant_owns), prefix=PREFIX)


@router.get("/admin/v1/audit", tags=["audit"])
async def list_all_audit_events(
    _admin: Admin, services: ServicesOf, asked: Annotated[AllAuditQuery, fastapi.Query()]
) -> Listing[AuditEventView]:
    """List what was done to all tenants' adapters and limits, or to one's, newest first."""
    tenant_id = None
    if asked.tenant is not None:
        async with services.resources.database.reader() as session:
            tenant_id = (await tenant_of(session, asked.tenant)).id
    return await page_of_events(services, asked, tenant_id)
