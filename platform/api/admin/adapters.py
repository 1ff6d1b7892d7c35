"""`/admin/v1/tenants/{tenant}/adapters/…`: a tenant's adapters, as it sees them; the audit log."""

from typing import Annotated

import fastapi
from fastapi import APIRouter, Depends, Request

from loraplex.platform.api.adapter_aliases import alias_routes
from loraplex.platform.api.adapter_owner import AdapterOwner
from loraplex.platform.api.adapter_uploads import ImportBody
from loraplex.platform.api.adapter_versions import version_routes
from loraplex.platform.api.adapter_views import AuditEventView
from loraplex.platform.api.admin.tenants import tenant_of
from loraplex.platform.api.audit import AuditQuery, page_of_events
from loraplex.platform.api.bodies import parse_exactly, request_body_of
from loraplex.platform.api.paging import Listing
from loraplex.platform.api.views import AdapterVersionView
from loraplex.platform.deps import Admin, ServicesOf, body_of
from loraplex.platform.imports import Reference, import_adapter

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


@router.post(
    f"{PREFIX}/import",
    status_code=201,
    tags=["adapters"],
    openapi_extra=request_body_of(ImportBody),
)
async def import_for_tenant(
    request: Request, owner: Annotated[AdapterOwner, Depends(tenant_owns)], services: ServicesOf
) -> AdapterVersionView:
    """Publish for a tenant an adapter that lies in any of the platform's sources."""
    asked = parse_exactly(await body_of(request), ImportBody)
    version = await import_adapter(
        services.resources,
        owner.tenant_id,
        asked.name,
        Reference(asked.source, asked.path),
        owner.actor,
        as_operator=True,
    )
    return AdapterVersionView.of(version)


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
