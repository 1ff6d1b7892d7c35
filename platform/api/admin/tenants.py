"""`/admin/v1/tenants`: tenants and their keys and adapters."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.registry import registry
from loraplex.platform.api.adapters import upload_form
from loraplex.platform.api.admin.repeatable import Post
from loraplex.platform.api.admin.schemas import ChangeBody, KeyBody, LimitsBody, TenantBody
from loraplex.platform.api.bodies import parse_exactly, request_body_of
from loraplex.platform.api.paging import Listing, Page, listing, one_page
from loraplex.platform.api.views import AdapterVersionView, KeyView, NewKeyView, TenantView
from loraplex.platform.deps import Admin, ServicesOf, body_of, chunks_of
from loraplex.platform.uploads import receive
from loraplex.tenants import api_keys, directory
from loraplex.tenants.audit import Act
from loraplex.tenants.directory import (
    NO_ADAPTER_LIMITS,
    NO_LIMITS_OF_ITS_OWN,
    TenantChange,
    TenantRecord,
)
from loraplex.tenants.ids import Entropy
from loraplex.tenants.key_text import random_key

router = APIRouter(prefix="/admin/v1/tenants")


async def tenant_of(session: AsyncSession, named: str) -> TenantRecord:
    """The tenant of a path: by id or name, which differ, since no name has an underscore."""
    if "_" in named:
        return await directory.get(session, named)
    return await directory.get_by_name(session, named)


@router.post(
    "",
    status_code=201,
    response_model=TenantView,
    openapi_extra=request_body_of(TenantBody),
    tags=["tenants"],
)
async def create_tenant(request: Request, admin: Admin, services: ServicesOf) -> Response:
    """Add a tenant."""
    asked = parse_exactly(await body_of(request), TenantBody)
    limits = asked.limits.over(NO_LIMITS_OF_ITS_OWN)
    adapters = asked.limits.over_adapters(NO_ADAPTER_LIMITS)

    async def work(session: AsyncSession, entropy: Entropy) -> TenantView:
        now = services.now()
        return TenantView.of(
            await directory.create(
                session, asked.name, now, entropy, asked.weight, limits, adapters
            )
        )

    return await Post(request, admin, services).serve(work)


@router.get("", tags=["tenants"])
async def list_tenants(
    _admin: Admin, services: ServicesOf, page: Annotated[Page, Query()]
) -> Listing[TenantView]:
    """List the tenants, oldest first."""
    async with services.resources.database.reader() as session:
        tenants = await directory.list_page(session, page.limit + 1, page.after)
    return one_page([TenantView.of(tenant) for tenant in tenants], page.limit)


@router.get("/{tenant}", tags=["tenants"])
async def retrieve_tenant(tenant: str, _admin: Admin, services: ServicesOf) -> TenantView:
    """Show a tenant, found by name or id."""
    async with services.resources.database.reader() as session:
        return TenantView.of(await tenant_of(session, tenant))


@router.patch("/{tenant}", openapi_extra=request_body_of(ChangeBody), tags=["tenants"])
async def change_tenant(
    tenant: str, request: Request, admin: Admin, services: ServicesOf
) -> TenantView:
    """Change a tenant's weight or limits; they hold for requests from now on."""
    asked = parse_exactly(await body_of(request), ChangeBody)
    limits = asked.limits or LimitsBody()
    async with services.resources.database.session() as session:
        current = await tenant_of(session, tenant)
        wanted = TenantChange(
            asked.weight, limits.over(current.limits), limits.over_adapters(current.adapters)
        )
        act = Act(admin.key_id, services.now())
        return TenantView.of(await directory.change(session, act, current.id, wanted))


@router.post("/{tenant}/suspend", response_model=TenantView, tags=["tenants"])
async def suspend_tenant(
    tenant: str, request: Request, admin: Admin, services: ServicesOf
) -> Response:
    """Refuse the keys of a tenant until it is resumed."""

    async def work(session: AsyncSession, _entropy: Entropy) -> TenantView:
        found = await tenant_of(session, tenant)
        return TenantView.of(await directory.suspend(session, found.name))

    return await Post(request, admin, services, status=200).serve(work)


@router.post("/{tenant}/resume", response_model=TenantView, tags=["tenants"])
async def resume_tenant(
    tenant: str, request: Request, admin: Admin, services: ServicesOf
) -> Response:
    """Accept the keys of a suspended tenant again."""

    async def work(session: AsyncSession, _entropy: Entropy) -> TenantView:
        found = await tenant_of(session, tenant)
        return TenantView.of(await directory.resume(session, found.name))

    return await Post(request, admin, services, status=200).serve(work)


@router.post(
    "/{tenant}/keys",
    status_code=201,
    response_model=NewKeyView,
    openapi_extra=request_body_of(KeyBody),
    tags=["keys"],
)
async def create_key(tenant: str, request: Request, admin: Admin, services: ServicesOf) -> Response:
    """Make an API key for a tenant. The answer is the only place where the key is shown."""
    asked = parse_exactly(await body_of(request), KeyBody)
    now = services.now()

    async def work(session: AsyncSession, entropy: Entropy) -> NewKeyView:
        owner = await tenant_of(session, tenant)
        pepper = services.resources.pepper
        minted = await api_keys.mint(
            session, owner, asked.label, pepper, now, entropy, asked.expires_at
        )
        return NewKeyView(
            id=minted.key_id,
            label=asked.label,
            created_at=now,
            expires_at=asked.expires_at,
            key=minted.text,
        )

    def secrets(entropy: Entropy) -> dict[str, str]:
        return {"key": random_key(api_keys.PREFIX, entropy).text}

    return await Post(request, admin, services).serve(work, secrets)


@router.get("/{tenant}/keys", tags=["keys"])
async def list_keys(
    tenant: str, _admin: Admin, services: ServicesOf, page: Annotated[Page, Query()]
) -> Listing[KeyView]:
    """List a tenant's API keys, oldest first; the keys themselves are not kept."""
    async with services.resources.database.reader() as session:
        owner = await tenant_of(session, tenant)
        keys = await api_keys.list_keys(session, owner.id)
    return listing([KeyView.of(key) for key in keys], page)


@router.post("/{tenant}/keys/{key_id}/revoke", response_model=KeyView, tags=["keys"])
async def revoke_key(
    tenant: str, key_id: str, request: Request, admin: Admin, services: ServicesOf
) -> Response:
    """Revoke an API key for ever; one that is revoked already keeps its time."""

    async def work(session: AsyncSession, _entropy: Entropy) -> KeyView:
        owner = await tenant_of(session, tenant)
        await api_keys.revoke(session, owner.id, key_id, services.now())
        keys = await api_keys.list_keys(session, owner.id)
        return KeyView.of(next(key for key in keys if key.key_id == key_id))

    return await Post(request, admin, services, status=200).serve(work)


@router.post("/{tenant}/adapters", status_code=201, openapi_extra=upload_form(), tags=["adapters"])
async def upload_tenant_adapter(
    tenant: str, request: Request, admin: Admin, services: ServicesOf
) -> AdapterVersionView:
    """Upload a PEFT LoRA checkpoint for a tenant; the same bytes again are the same version."""
    async with services.resources.database.reader() as session:
        owner = await tenant_of(session, tenant)
    content_type = request.headers.get("content-type", "")
    chunks = chunks_of(request)
    version = await receive(services.resources, owner.id, content_type, chunks, admin.key_id)
    return AdapterVersionView.of(version)


@router.get("/{tenant}/adapters", tags=["adapters"])
async def list_tenant_adapters(
    tenant: str, _admin: Admin, services: ServicesOf, page: Annotated[Page, Query()]
) -> Listing[AdapterVersionView]:
    """List all versions of a tenant's adapters: by name, newest first."""
    async with services.resources.database.reader() as session:
        owner = await tenant_of(session, tenant)
        versions = await registry.list_versions(session, owner.id)
    return listing([AdapterVersionView.of(version) for version in versions], page)
