"""`/admin/v1/tenants/{tenant}/adapters/…`: a tenant's adapters, as it sees them."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from loraplex.platform.api.adapter_aliases import alias_routes
from loraplex.platform.api.adapter_uploads import ImportBody
from loraplex.platform.api.adapter_versions import version_routes
from loraplex.platform.api.adapter_warm import warm_routes
from loraplex.platform.api.bodies import parse_exactly, request_body_of
from loraplex.platform.api.owner import OPERATORS, ResourceOwner, tenant_owns
from loraplex.platform.api.views import AdapterVersionView
from loraplex.platform.deps import ServicesOf, body_of
from loraplex.platform.imports import Reference, import_adapter
from loraplex.platform.permissions import operator_may

router = APIRouter()
PREFIX = "/admin/v1/tenants/{tenant}/adapters"


router.include_router(version_routes(OPERATORS), prefix=PREFIX)
router.include_router(alias_routes(OPERATORS), prefix=PREFIX)
router.include_router(warm_routes(OPERATORS, "adapters.write"), prefix=PREFIX)


@router.post(
    f"{PREFIX}/import",
    status_code=201,
    tags=["adapters"],
    openapi_extra=request_body_of(ImportBody),
    dependencies=[operator_may("adapters.write")],
)
async def import_for_tenant(
    request: Request, owner: Annotated[ResourceOwner, Depends(tenant_owns)], services: ServicesOf
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
