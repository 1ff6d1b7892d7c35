"""All people of the platform: who they are, what they may, and whether they may sign in."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from loraplex.platform.console.access import OwnForm, Session
from loraplex.platform.console.pages import lead_to, render
from loraplex.platform.console.permissions import OnPlatform, check
from loraplex.platform.console.route import ConsoleRoute
from loraplex.platform.deps import ServicesOf
from loraplex.platform.services import Services
from loraplex.tenants import console_sessions, directory, memberships, people
from loraplex.tenants.errors import LastOwner, PersonExists, ValueRefused
from loraplex.tenants.people import PersonRecord
from loraplex.tenants.roles import PLATFORM_GRANTS, TENANT_GRANTS

router = APIRouter(route_class=ConsoleRoute, prefix="/people")

SeesPeople = Annotated[Session, Depends(OnPlatform("people.read"))]
ChangesPeople = Annotated[Session, Depends(OnPlatform("people.write"))]
HOME = "/console/people"


@router.get("")
async def show_people(_session: SeesPeople, request: Request, services: ServicesOf) -> Response:
    """All people, and a form for one more."""
    return await _list_page(request, services)


@router.post("")
async def add_person(
    session: ChangesPeople, request: Request, form: OwnForm, services: ServicesOf
) -> Response:
    """Add a person, who may do nothing yet."""
    email, name = form.text("email"), form.text("name")
    resources = services.resources
    try:
        async with resources.database.session() as transaction:
            act = session.act(services.now())
            person = await people.add(transaction, act, email, name, resources.entropy)
    except ValueRefused as error:
        return await _list_page(request, services, email, name, {error.field: str(error)})
    except PersonExists as error:
        return await _list_page(request, services, email, name, {"email": str(error)})
    done = f"{person.email} was added. A role is the next step."
    return lead_to(request, f"{HOME}/{person.id}", done)


@router.get("/{person_id}")
async def show_person(
    _session: SeesPeople, person_id: str, request: Request, services: ServicesOf
) -> Response:
    """One person, and all that can be done about them."""
    return await _page(request, services, person_id)


@router.post("/{person_id}/roles")
async def grant_role(
    session: ChangesPeople, person_id: str, request: Request, form: OwnForm, services: ServicesOf
) -> Response:
    """Give the person a role on the platform or in a tenant; an empty role takes it away."""
    role, tenant_name = form.text("role"), form.text("tenant")
    resources, act = services.resources, session.act(services.now())
    try:
        async with resources.database.session() as transaction:
            tenant_id = None
            if tenant_name:
                tenant_id = (await directory.get_by_name(transaction, tenant_name)).id
            check(session, session.platform, memberships.needed_to_grant(tenant_id))
            if role:
                await memberships.grant(
                    transaction, act, person_id, role, tenant_id, resources.entropy
                )
            else:
                await memberships.revoke(transaction, act, person_id, tenant_id)
    except ValueRefused as error:
        return await _page(request, services, person_id, {error.field: str(error)})
    except LastOwner as error:
        return await _page(request, services, person_id, {"role": str(error)})
    return lead_to(request, f"{HOME}/{person_id}", "The role was saved.")


@router.post("/{person_id}/password")
async def set_password(
    session: ChangesPeople, person_id: str, request: Request, form: OwnForm, services: ServicesOf
) -> Response:
    """Give the person a password; the person's sessions end."""
    try:
        hashed = await services.passwords.hash(form.values.get("password", ""))
    except ValueRefused as error:
        return await _page(request, services, person_id, {error.field: str(error)})
    async with services.resources.database.session() as transaction:
        person = await people.get(transaction, person_id)
        check(session, session.platform, person.needed_to_change)
        await people.set_password(transaction, session.act(services.now()), person_id, hashed)
    done = f"{person.email} signs in with the new password from now on."
    return lead_to(request, f"{HOME}/{person_id}", done)


@router.post("/{person_id}/status")
async def set_status(
    session: ChangesPeople, person_id: str, request: Request, form: OwnForm, services: ServicesOf
) -> Response:
    """Keep the person out, or let them in again."""
    status = "disabled" if form.text("status") == "disabled" else "active"
    try:
        async with services.resources.database.session() as transaction:
            person = await people.get(transaction, person_id)
            check(session, session.platform, person.needed_to_change)
            await people.set_status(transaction, session.act(services.now()), person_id, status)
    except LastOwner as error:
        return await _page(request, services, person_id, {"status": str(error)})
    done = f"{person.email} is {status} now."
    return lead_to(request, f"{HOME}/{person_id}", done)


@router.post("/{person_id}/sign-out")
async def sign_person_out(
    session: ChangesPeople, person_id: str, request: Request, _form: OwnForm, services: ServicesOf
) -> Response:
    """End all sessions of the person."""
    async with services.resources.database.session() as transaction:
        person = await people.get(transaction, person_id)
        check(session, session.platform, person.needed_to_change)
        await console_sessions.end_all(transaction, person_id)
    return lead_to(request, f"{HOME}/{person_id}", f"{person.email} is signed out everywhere.")


@router.post("/{person_id}/unlink")
async def unlink_person(
    session: ChangesPeople, person_id: str, request: Request, _form: OwnForm, services: ServicesOf
) -> Response:
    """Forget by which issuer the person signs in."""
    async with services.resources.database.session() as transaction:
        person = await people.get(transaction, person_id)
        check(session, session.platform, person.needed_to_change)
        await people.unlink(transaction, session.act(services.now()), person_id)
    done = f"{person.email} is linked anew at the next sign-in by an issuer."
    return lead_to(request, f"{HOME}/{person_id}", done)


async def _list_page(
    request: Request,
    services: Services,
    email: str = "",
    name: str = "",
    errors: Mapping[str, str] | None = None,
) -> Response:
    async with services.resources.database.reader() as session:
        found = await people.list_people(session)
    return render(
        request,
        "people.html",
        400 if errors else 200,
        people=found,
        email=email,
        name=name,
        errors=errors or {},
    )


async def _page(
    request: Request,
    services: Services,
    person_id: str,
    errors: Mapping[str, str] | None = None,
) -> Response:
    async with services.resources.database.reader() as session:
        person: PersonRecord = await people.get(session, person_id)
        tenants = [tenant.name for tenant in await directory.list_tenants(session)]
    return render(
        request,
        "person.html",
        400 if errors else 200,
        person=person,
        tenants=tenants,
        platform_roles=tuple(PLATFORM_GRANTS),
        tenant_roles=tuple(TENANT_GRANTS),
        errors=errors or {},
    )
