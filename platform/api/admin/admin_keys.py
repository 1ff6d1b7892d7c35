"""`/admin/v1/admin-keys`: operators' keys, and how whole the audit log is."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.platform.api.admin.schemas import AdminKeyBody
from loraplex.platform.api.bodies import parse_exactly, request_body_of
from loraplex.platform.api.owner import act_of
from loraplex.platform.api.paging import Listing, Page, listing
from loraplex.platform.api.repeatable import Post
from loraplex.platform.api.tenancy_views import AdminKeyView, NewAdminKeyView
from loraplex.platform.deps import Admin, ServicesOf, body_of
from loraplex.platform.permissions import operator_may
from loraplex.tenants import admin_keys
from loraplex.tenants.ids import Entropy
from loraplex.tenants.key_text import random_key

router = APIRouter(prefix="/admin/v1/admin-keys", tags=["admin keys"])


@router.post(
    "",
    status_code=201,
    response_model=NewAdminKeyView,
    openapi_extra=request_body_of(AdminKeyBody),
    dependencies=[operator_may("owners.write")],
)
async def create_admin_key(request: Request, admin: Admin, services: ServicesOf) -> Response:
    """Make an operator's key. The answer is the only place where the key is shown."""
    asked = parse_exactly(await body_of(request), AdminKeyBody)
    act = act_of(request, admin, services)
    pepper = services.resources.pepper

    async def work(session: AsyncSession, entropy: Entropy) -> NewAdminKeyView:
        minted = await admin_keys.create(
            session, act, asked.label, asked.role, pepper, entropy, asked.expires_at
        )
        key = await admin_keys.get_key(session, minted.key_id)
        return NewAdminKeyView.with_text(key, minted.text)

    def secrets(entropy: Entropy) -> dict[str, str]:
        return {"key": random_key(admin_keys.PREFIX, entropy).text}

    return await Post(request, admin, services).serve(work, secrets)


@router.get("", dependencies=[operator_may("owners.write")])
async def list_admin_keys(
    _admin: Admin, services: ServicesOf, page: Annotated[Page, Query()]
) -> Listing[AdminKeyView]:
    """List operators' keys, oldest first; the keys themselves are not kept."""
    async with services.resources.database.reader() as session:
        keys = await admin_keys.list_keys(session)
    return listing([AdminKeyView.of(key) for key in keys], page)


@router.post(
    "/{key_id}/revoke",
    response_model=AdminKeyView,
    dependencies=[operator_may("owners.write")],
)
async def revoke_admin_key(
    key_id: str, request: Request, admin: Admin, services: ServicesOf
) -> Response:
    """Revoke an operator's key for ever; one that is revoked already keeps its time."""
    act = act_of(request, admin, services)

    async def work(session: AsyncSession, _entropy: Entropy) -> AdminKeyView:
        await admin_keys.revoke(session, act, key_id)
        return AdminKeyView.of(await admin_keys.get_key(session, key_id))

    return await Post(request, admin, services, status=200).serve(work)
