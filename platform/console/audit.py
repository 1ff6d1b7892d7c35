"""What was done, and by whom: on the whole platform, or to one tenant's things."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.platform.console.access import Session
from loraplex.platform.console.pages import render
from loraplex.platform.console.permissions import Inside, OnPlatform, Place
from loraplex.platform.console.route import ConsoleRoute
from loraplex.platform.deps import ServicesOf
from loraplex.platform.services import Services
from loraplex.tenants import audit_chain, directory, people
from loraplex.tenants.audit import AuditFilter, AuditRecord, find_events

router = APIRouter(route_class=ConsoleRoute)

PAGE = 50
Text = Annotated[str, Query(max_length=200)]
Before = Annotated[str, Query(max_length=20, pattern=r"^[0-9]*$")]


@router.get("/audit")
async def show_all(
    session: Annotated[Session, Depends(OnPlatform("audit.read"))],
    request: Request,
    services: ServicesOf,
    action: Text = "",
    before: Before = "",
    *,
    check: bool = False,
) -> Response:
    """All events, and on demand whether the chain of their hashes is whole."""
    async with services.resources.database.reader() as reader:
        report = await audit_chain.verify(reader) if check else None
        head = await audit_chain.head(reader)
        names = {tenant.id: tenant.name for tenant in await directory.list_tenants(reader)}
    shown = await _shown(
        services, AuditFilter(action=action.strip() or None, reader=session.platform), before
    )
    return render(request, "audit.html", **shown, head=head, report=report, tenants=names)


@router.get("/tenants/{name}/audit")
async def show_of_tenant(
    place: Annotated[Place, Depends(Inside("audit.read"))],
    request: Request,
    services: ServicesOf,
    action: Text = "",
    before: Before = "",
) -> Response:
    """What was done to the tenant's things."""
    wanted = AuditFilter(place.tenant.id, action.strip() or None, reader=place.held)
    shown = await _shown(services, wanted, before)
    return render(request, "tenant_audit.html", **shown, place=place)


async def _shown(services: Services, wanted: AuditFilter, before: str) -> dict[str, Any]:
    """A page of events, and who the people among their actors and subjects are."""
    async with services.resources.database.reader() as session:
        events = await find_events(session, wanted, PAGE + 1, before or None)
        shown = events[:PAGE]
        may_know = "people.read" in wanted.reader
        actors = await _addresses(session, shown) if may_know else {}
    return {
        "events": shown,
        "actors": actors,
        "action": wanted.action or "",
        "older": shown[-1].id if len(events) > PAGE else None,
    }


async def _addresses(session: AsyncSession, events: list[AuditRecord]) -> dict[str, str]:
    """E-mail addresses of the people among the actors and subjects, by id."""
    ids = {event.actor for event in events} | {event.subject for event in events}
    return await people.addresses_of(session, [one for one in ids if one.startswith("psn_")])
