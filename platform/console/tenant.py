"""One tenant: what it uses now, its limits and weight, and whether its keys open the door."""

from collections.abc import Mapping
from datetime import timedelta

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from loraplex.platform.console.access import OwnForm, SignedIn
from loraplex.platform.console.limits_form import FIELDS, default_limits, limits_of, weight_of
from loraplex.platform.console.pages import render
from loraplex.platform.console.route import ConsoleRoute
from loraplex.platform.console.sessions import Notice
from loraplex.platform.deps import ServicesOf
from loraplex.platform.services import Services
from loraplex.tenants import directory
from loraplex.tenants.audit import Act
from loraplex.tenants.directory import TenantChange
from loraplex.tenants.errors import ValueRefused
from loraplex.tenants.totals import totals_by_tenant

router = APIRouter(route_class=ConsoleRoute)

DAY = timedelta(days=1)


@router.get("/tenants/{name}")
async def show_tenant(
    name: str, request: Request, _session: SignedIn, services: ServicesOf
) -> Response:
    """Its figures and settings."""
    return await _page(request, services, name)


@router.post("/tenants/{name}/limits")
async def set_limits(
    name: str, request: Request, session: SignedIn, form: OwnForm, services: ServicesOf
) -> Response:
    """Set its limits and its weight; an empty limit takes the platform's default."""
    try:
        async with services.resources.database.session() as transaction:
            tenant = await directory.get_by_name(transaction, name)
            act = Act(session.key_id, services.now())
            wanted = TenantChange(weight_of(form), limits_of(form))
            await directory.change(transaction, act, tenant.id, wanted)
    except ValueRefused as error:
        typed = {field: form.text(field) for field in (*FIELDS, "weight")}
        return await _page(request, services, name, {error.field: str(error)}, typed)
    session.notice = Notice("The limits were saved. They hold from the next request on.")
    return RedirectResponse(f"/console/tenants/{name}", 303)


@router.post("/tenants/{name}/suspend")
async def suspend_tenant(
    name: str, request: Request, session: SignedIn, form: OwnForm, services: ServicesOf
) -> Response:
    """Refuse its keys, once its name was typed."""
    if form.text("confirm") != name:
        errors = {"confirm": f"Type {name} to confirm; nothing was changed."}
        return await _page(request, services, name, errors)
    async with services.resources.database.session() as transaction:
        await directory.suspend(transaction, name)
    session.notice = Notice(f"{name} is suspended: its keys are refused.")
    return RedirectResponse(f"/console/tenants/{name}", 303)


@router.post("/tenants/{name}/resume")
async def resume_tenant(
    name: str, request: Request, session: SignedIn, form: OwnForm, services: ServicesOf
) -> Response:
    """Accept its keys again, once its name was typed."""
    if form.text("confirm") != name:
        errors = {"confirm": f"Type {name} to confirm; nothing was changed."}
        return await _page(request, services, name, errors)
    async with services.resources.database.session() as transaction:
        await directory.resume(transaction, name)
    session.notice = Notice(f"{name} is active: its keys are accepted again.")
    return RedirectResponse(f"/console/tenants/{name}", 303)


async def _page(
    request: Request,
    services: Services,
    name: str,
    errors: Mapping[str, str] | None = None,
    typed: Mapping[str, str] | None = None,
) -> Response:
    async with services.resources.database.reader() as session:
        tenant = await directory.get_by_name(session, name)
        day = (await totals_by_tenant(session, services.now() - DAY)).get(tenant.id)
    stored = {field: getattr(tenant.limits, field) or "" for field in FIELDS}
    return render(
        request,
        "tenant.html",
        400 if errors else 200,
        tenant=tenant,
        day=day,
        in_use=await services.resources.quotas.in_use(tenant.id),
        limits=tenant.limits.over(default_limits(services)),
        defaults=default_limits(services),
        typed=typed or {**stored, "weight": f"{tenant.weight:g}"},
        errors=errors or {},
    )
