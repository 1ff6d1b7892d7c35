"""All tenants at a glance, and a form for one more."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from loraplex.adapters.registry.counts import adapters_by_tenant
from loraplex.platform.console.access import OwnForm, Session, SignedIn
from loraplex.platform.console.pages import lead_to, render
from loraplex.platform.console.permissions import OnPlatform
from loraplex.platform.console.route import ConsoleRoute
from loraplex.platform.deps import ServicesOf
from loraplex.platform.services import Services, default_limits
from loraplex.tenants import directory
from loraplex.tenants.directory import NewTenant, TenantRecord
from loraplex.tenants.errors import NameInvalid, TenantExists
from loraplex.tenants.limits import Limits
from loraplex.tenants.totals import TenantTotal, active_keys_by_tenant, totals_by_tenant

router = APIRouter(route_class=ConsoleRoute)

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Row:
    """One tenant in the list."""

    tenant: TenantRecord
    limits: Limits
    """That hold for it."""
    day: TenantTotal | None
    """The last 24 hours; None if it sent nothing."""
    num_keys: int
    num_adapters: int


@router.get("/tenants")
async def show_tenants(
    request: Request, session: SignedIn, services: ServicesOf, q: Annotated[str, Query()] = ""
) -> Response:
    """The list, or the part of it whose names contain `q`: all, or those one belongs to."""
    return await _page(request, services, session, q.strip())


@router.post("/tenants")
async def create_tenant(
    request: Request,
    session: Annotated[Session, Depends(OnPlatform("tenants.write"))],
    form: OwnForm,
    services: ServicesOf,
) -> Response:
    """Add a tenant."""
    name = form.text("name")
    resources = services.resources
    try:
        async with resources.database.session() as transaction:
            await directory.add(
                transaction, session.act(services.now()), NewTenant(name), resources.entropy
            )
    except (NameInvalid, TenantExists) as error:
        return await _page(request, services, session, "", name, {"name": str(error)})
    done = f"The tenant {name} was created. Its first key is the next step."
    return lead_to(request, f"/console/tenants/{name}/keys", done)


async def _page(
    request: Request,
    services: Services,
    signed_in: Session,
    q: str,
    name: str = "",
    errors: dict[str, str] | None = None,
) -> Response:
    rows = await _rows(services, signed_in)
    return render(
        request,
        "tenants.html",
        400 if errors else 200,
        rows=[row for row in rows if q.lower() in row.tenant.name],
        total=len(rows),
        q=q,
        name=name,
        errors=errors or {},
    )


async def _rows(services: Services, signed_in: Session) -> list[Row]:
    now = services.now()
    defaults = default_limits(services.resources.settings)
    async with services.resources.database.reader() as session:
        tenants = await directory.list_tenants(session)
        totals = await totals_by_tenant(session, now - DAY)
        keys = await active_keys_by_tenant(session, now)
        adapters = await adapters_by_tenant(session)
    return [
        Row(
            tenant=tenant,
            limits=tenant.limits.over(defaults),
            day=totals.get(tenant.id),
            num_keys=keys.get(tenant.id, 0),
            num_adapters=adapters.get(tenant.id, 0),
        )
        for tenant in tenants
        if signed_in.may("tenants.read") or tenant.id in signed_in.tenants
    ]
