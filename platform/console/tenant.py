"""One tenant: what it uses now, its limits and weight, and whether its keys open the door."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from loraplex.platform.console.access import OwnForm
from loraplex.platform.console.pages import lead_to, render
from loraplex.platform.console.permissions import Inside, Place
from loraplex.platform.console.route import ConsoleRoute
from loraplex.platform.console.share_form import FIELDS, deadline_of, weight_of
from loraplex.platform.deps import ServicesOf
from loraplex.platform.services import Services, default_limits
from loraplex.tenants import directory
from loraplex.tenants.directory import TenantChange
from loraplex.tenants.errors import QuotaBackendUnavailable, ValueRefused
from loraplex.tenants.quotas import InUse
from loraplex.tenants.totals import totals_by_tenant

router = APIRouter(route_class=ConsoleRoute)

DAY = timedelta(days=1)


SeesUsage = Annotated[Place, Depends(Inside("usage.read"))]
ChangesTenant = Annotated[Place, Depends(Inside("tenants.write"))]


@router.get("/tenants/{name}")
async def show_tenant(place: SeesUsage, request: Request, services: ServicesOf) -> Response:
    """Its figures and settings."""
    return await _page(request, services, place)


@router.post("/tenants/{name}/share")
async def set_share(
    place: ChangesTenant, request: Request, form: OwnForm, services: ServicesOf
) -> Response:
    """Set its weight, and the deadline of requests that name none."""
    try:
        async with services.resources.database.session() as transaction:
            act = place.session.act(services.now())
            wanted = TenantChange(weight_of(form), {"ttft_deadline_ms": deadline_of(form)})
            await directory.change(transaction, act, place.tenant.id, wanted)
    except ValueRefused as error:
        typed = {field: form.text(field) for field in FIELDS}
        return await _page(request, services, place, {error.field: str(error)}, typed)
    done = "The share was saved. It holds from the next request on."
    return lead_to(request, f"/console/tenants/{place.tenant.name}", done)


@router.post("/tenants/{name}/suspend")
async def suspend_tenant(
    place: ChangesTenant, request: Request, form: OwnForm, services: ServicesOf
) -> Response:
    """Refuse its keys, once its name was typed."""
    name = place.tenant.name
    if form.text("confirm") != name:
        errors = {"confirm": f"Type {name} to confirm; nothing was changed."}
        return await _page(request, services, place, errors)
    async with services.resources.database.session() as transaction:
        await directory.suspend(transaction, place.session.act(services.now()), place.tenant.id)
    done = f"{name} is suspended: its keys are refused."
    return lead_to(request, f"/console/tenants/{name}", done)


@router.post("/tenants/{name}/resume")
async def resume_tenant(
    place: ChangesTenant, request: Request, form: OwnForm, services: ServicesOf
) -> Response:
    """Accept its keys again, once its name was typed."""
    name = place.tenant.name
    if form.text("confirm") != name:
        errors = {"confirm": f"Type {name} to confirm; nothing was changed."}
        return await _page(request, services, place, errors)
    async with services.resources.database.session() as transaction:
        await directory.resume(transaction, place.session.act(services.now()), place.tenant.id)
    done = f"{name} is active: its keys are accepted again."
    return lead_to(request, f"/console/tenants/{name}", done)


async def _page(
    request: Request,
    services: Services,
    place: Place,
    errors: Mapping[str, str] | None = None,
    typed: Mapping[str, str] | None = None,
) -> Response:
    async with services.resources.database.reader() as session:
        tenant = await directory.get(session, place.tenant.id)
        day = (await totals_by_tenant(session, services.now() - DAY)).get(tenant.id)
    return render(
        request,
        "tenant.html",
        400 if errors else 200,
        place=place,
        day=day,
        in_use=await _in_use(services, tenant.id),
        limits=tenant.limits.over(default_limits(services.resources.settings)),
        typed=typed
        or {
            "weight": f"{tenant.weight:g}",
            "ttft_deadline_ms": tenant.limits.ttft_deadline_ms or "",
        },
        errors=errors or {},
    )


async def _in_use(services: Services, tenant_id: str) -> InUse | None:
    """What is open; None while the store that gateways share is away."""
    try:
        return await services.resources.quotas.in_use(tenant_id)
    except QuotaBackendUnavailable:
        return None
