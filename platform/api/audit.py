"""`/v1/audit`: what was done to a tenant's adapters and limits, and by whom."""

from typing import Annotated

import fastapi
from fastapi import APIRouter, Depends

from loraplex.platform.api.adapter_views import AuditEventView
from loraplex.platform.api.moments import Moment
from loraplex.platform.api.paging import Listing, Page, one_page
from loraplex.platform.api.unread import refuse_unread
from loraplex.platform.deps import Caller, ServicesOf, principal_of
from loraplex.platform.permissions import caller_may
from loraplex.platform.services import Services
from loraplex.tenants.audit import AuditFilter, find_events
from loraplex.tenants.roles import Permissions

router = APIRouter(tags=["audit"], dependencies=[Depends(principal_of), Depends(refuse_unread)])


class AuditQuery(Page):
    """Which events are listed."""

    action: Annotated[str, fastapi.Query(max_length=60)] | None = None
    """Such as `adapter.alias.point`, or a beginning: `adapter.alias`."""
    subject: Annotated[str, fastapi.Query(max_length=200)] | None = None
    """Such as `acme/support@3`, or the adapter for all of its versions and aliases."""
    since: Moment | None = None
    until: Moment | None = None


@router.get("/v1/audit", dependencies=[caller_may("audit.read")])
async def list_audit_events(
    caller: Caller, services: ServicesOf, asked: Annotated[AuditQuery, fastapi.Query()]
) -> Listing[AuditEventView]:
    """List what was done to the tenant's adapters and limits, newest first."""
    return await page_of_events(services, asked, caller.tenant_id, caller.permissions)


async def page_of_events(
    services: Services, asked: AuditQuery, tenant_id: str | None, reader: Permissions
) -> Listing[AuditEventView]:
    """The events that are asked for, of one tenant or of all, as far as the reader may know."""
    wanted = AuditFilter(tenant_id, asked.action, asked.subject, asked.since, asked.until, reader)
    async with services.resources.database.reader() as session:
        events = await find_events(session, wanted, asked.limit + 1, asked.after)
    return one_page([AuditEventView.of(event) for event in events], asked.limit)
