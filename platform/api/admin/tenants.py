"""`/admin/v1/tenants`: tenants and their adapters."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.registry import registry
from loraplex.platform.api.adapters import upload_form
from loraplex.platform.api.admin.schemas import ChangeBody, LimitsBody, ReasonBody, TenantBody
from loraplex.platform.api.bodies import parse_exactly, parse_optional, request_body_of
from loraplex.platform.api.owner import act_of, tenant_of
from loraplex.platform.api.paging import Listing, Page, listing, one_page
from loraplex.platform.api.repeatable import Post
from loraplex.platform.api.views import AdapterVersionView, TenantView
from loraplex.platform.deps import Admin, ServicesOf, body_of, chunks_of
from loraplex.platform.permissions import operator_may
from loraplex.platform.uploads import receive
from loraplex.tenants import directory
from loraplex.tenants.directory import NewTenant, TenantChange
from loraplex.tenants.ids import Entropy
from loraplex.tenants.limits import AdapterLimits, TenantLimits

router = APIRouter(prefix="/admin/v1/tenants")


@router.post(
    "",
    status_code=201,
    response_model=TenantView,
    openapi_extra=request_body_of(TenantBody),
    tags=["tenants"],
    dependencies=[operator_may("tenants.write")],
)
async def create_tenant(request: Request, admin: Admin, services: ServicesOf) -> Response:
    """Add a tenant."""
    asked = parse_exactly(await body_of(request), TenantBody)
    wanted = NewTenant(
        asked.name,
        asked.weight,
        TenantLimits(**asked.limits.named(TenantLimits)),
        AdapterLimits(**asked.limits.named(AdapterLimits)),
        _tuple(asked.service_tiers),
        asked.time_zone,
    )
    act = act_of(request, admin, services)

    async def work(session: AsyncSession, entropy: Entropy) -> TenantView:
        return TenantView.of(await directory.add(session, act, wanted, entropy))

    return await Post(request, admin, services).serve(work)


@router.get("", tags=["tenants"], dependencies=[operator_may("tenants.read")])
async def list_tenants(
    _admin: Admin, services: ServicesOf, page: Annotated[Page, Query()]
) -> Listing[TenantView]:
    """List the tenants, oldest first."""
    async with services.resources.database.reader() as session:
        tenants = await directory.list_page(session, page.limit + 1, page.after)
    return one_page([TenantView.of(tenant) for tenant in tenants], page.limit)


@router.get("/{tenant}", tags=["tenants"], dependencies=[operator_may("tenants.read")])
async def retrieve_tenant(tenant: str, _admin: Admin, services: ServicesOf) -> TenantView:
    """Show a tenant, found by name or id."""
    async with services.resources.database.reader() as session:
        return TenantView.of(await tenant_of(session, tenant))


@router.patch(
    "/{tenant}",
    response_model=TenantView,
    openapi_extra=request_body_of(ChangeBody),
    tags=["tenants"],
    dependencies=[operator_may("tenants.write")],
)
async def change_tenant(
    tenant: str, request: Request, admin: Admin, services: ServicesOf
) -> Response:
    """Change a tenant's weight, limits, tiers or time zone, for requests from now on."""
    asked = parse_exactly(await body_of(request), ChangeBody)
    limits = asked.limits or LimitsBody()
    act = act_of(request, admin, services)

    wanted = TenantChange(
        asked.weight,
        limits.named(TenantLimits),
        limits.named(AdapterLimits),
        _tuple(asked.service_tiers),
        asked.time_zone,
    )

    async def work(session: AsyncSession, _entropy: Entropy) -> TenantView:
        found = await tenant_of(session, tenant)
        return TenantView.of(await directory.change(session, act, found.id, wanted))

    return await Post(request, admin, services, status=200).serve(work)


@router.post(
    "/{tenant}/suspend",
    response_model=TenantView,
    openapi_extra=request_body_of(ReasonBody, required=False),
    tags=["tenants"],
    dependencies=[operator_may("tenants.write")],
)
async def suspend_tenant(
    tenant: str, request: Request, admin: Admin, services: ServicesOf
) -> Response:
    """Refuse the keys of a tenant until it is resumed, and break off its open requests."""
    reason = parse_optional(await body_of(request), ReasonBody).reason
    act = act_of(request, admin, services)

    async def work(session: AsyncSession, _entropy: Entropy) -> TenantView:
        found = await tenant_of(session, tenant)
        return TenantView.of(await directory.suspend(session, act, found.id, reason))

    return await Post(request, admin, services, status=200).serve(work)


@router.post(
    "/{tenant}/resume",
    response_model=TenantView,
    openapi_extra=request_body_of(ReasonBody, required=False),
    tags=["tenants"],
    dependencies=[operator_may("tenants.write")],
)
async def resume_tenant(
    tenant: str, request: Request, admin: Admin, services: ServicesOf
) -> Response:
    """Accept the keys of a suspended tenant again."""
    reason = parse_optional(await body_of(request), ReasonBody).reason
    act = act_of(request, admin, services)

    async def work(session: AsyncSession, _entropy: Entropy) -> TenantView:
        found = await tenant_of(session, tenant)
        return TenantView.of(await directory.resume(session, act, found.id, reason))

    return await Post(request, admin, services, status=200).serve(work)


@router.post(
    "/{tenant}/adapters",
    status_code=201,
    openapi_extra=upload_form(),
    tags=["adapters"],
    dependencies=[operator_may("adapters.write")],
)
async def upload_tenant_adapter(
    tenant: str, request: Request, admin: Admin, services: ServicesOf
) -> AdapterVersionView:
    """Upload a PEFT LoRA checkpoint for a tenant; the same bytes again are the same version."""
    async with services.resources.database.reader() as session:
        owner = await tenant_of(session, tenant)
    content_type = request.headers.get("content-type", "")
    actor = act_of(request, admin, services).actor
    version = await receive(services.resources, owner.id, content_type, chunks_of(request), actor)
    return AdapterVersionView.of(version)


@router.get("/{tenant}/adapters", tags=["adapters"], dependencies=[operator_may("adapters.read")])
async def list_tenant_adapters(
    tenant: str, _admin: Admin, services: ServicesOf, page: Annotated[Page, Query()]
) -> Listing[AdapterVersionView]:
    """List all versions of a tenant's adapters: by name, newest first."""
    async with services.resources.database.reader() as session:
        owner = await tenant_of(session, tenant)
        versions = await registry.list_versions(session, owner.id)
    return listing([AdapterVersionView.of(version) for version in versions], page)


def _tuple(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)
