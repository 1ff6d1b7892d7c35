"""`/admin/v1/audit`: what was done to whatever there is, and whether the log of it is whole."""

from datetime import datetime
from typing import Annotated, Literal

import fastapi
from fastapi import APIRouter
from pydantic import BaseModel

from loraplex.platform.api.adapter_views import AuditEventView
from loraplex.platform.api.audit import AuditQuery, page_of_events
from loraplex.platform.api.owner import tenant_of
from loraplex.platform.api.paging import Listing
from loraplex.platform.deps import Admin, ServicesOf
from loraplex.platform.permissions import operator_may
from loraplex.tenants import audit_chain

router = APIRouter(tags=["audit"])


class HeadView(BaseModel):
    """The newest event's place in the chain. Whoever keeps its hash elsewhere can tell later, with
    `loraplex audit verify --head`, whether the log was cut off before it."""

    object: Literal["audit.head"] = "audit.head"
    id: str | None
    hash: str | None
    at: datetime | None
    """All null while nothing was told."""


class AllAuditQuery(AuditQuery):
    """Which events are listed."""

    tenant: str | None = None


@router.get("/admin/v1/audit", dependencies=[operator_may("audit.read")])
async def list_all_audit_events(
    admin: Admin, services: ServicesOf, asked: Annotated[AllAuditQuery, fastapi.Query()]
) -> Listing[AuditEventView]:
    """List what was done to all tenants' adapters and limits, or to one's, newest first."""
    tenant_id = None
    if asked.tenant is not None:
        async with services.resources.database.reader() as session:
            tenant_id = (await tenant_of(session, asked.tenant)).id
    return await page_of_events(services, asked, tenant_id, admin.permissions)


@router.get("/admin/v1/audit/head", dependencies=[operator_may("audit.read")])
async def show_audit_head(_admin: Admin, services: ServicesOf) -> HeadView:
    """Show the hash of the newest event, which stands for all before it."""
    async with services.resources.database.reader() as session:
        head = await audit_chain.head(session)
    if head is None:
        return HeadView(id=None, hash=None, at=None)
    return HeadView(id=str(head.id), hash=head.hash, at=head.at)
