"""A tenant's people, and their roles in it."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from loraplex.platform.console.access import OwnForm
from loraplex.platform.console.pages import lead_to, render
from loraplex.platform.console.permissions import Inside, Place
from loraplex.platform.console.route import ConsoleRoute
from loraplex.platform.deps import ServicesOf
from loraplex.platform.services import Services
from loraplex.tenants import members
from loraplex.tenants.errors import ValueRefused
from loraplex.tenants.roles import TENANT_GRANTS

router = APIRouter(route_class=ConsoleRoute, prefix="/tenants/{name}/members")

SeesMembers = Annotated[Place, Depends(Inside("people.read"))]
ChangesMembers = Annotated[Place, Depends(Inside("people.write"))]


@router.get("")
async def show_members(place: SeesMembers, request: Request, services: ServicesOf) -> Response:
    """All members, and a form for one more."""
    return await _page(request, services, place)


@router.post("")
async def add_member(
    place: ChangesMembers, request: Request, form: OwnForm, services: ServicesOf
) -> Response:
    """Give somebody a role, by address."""
    email, role = form.text("email"), form.text("role")
    resources = services.resources
    try:
        async with resources.database.session() as transaction:
            grantor = place.grantor(services.now())
            member = await members.add(
                transaction, grantor, place.tenant.id, email, role, resources.entropy
            )
    except ValueRefused as error:
        return await _page(request, services, place, email, {error.field: str(error)})
    return lead_to(request, _home(place), f"{member.email} is {member.role} now.")


@router.get("/{person_id}/remove")
async def ask_to_remove(
    place: ChangesMembers, person_id: str, request: Request, services: ServicesOf
) -> Response:
    """What removing means, and the button that does it."""
    async with services.resources.database.reader() as session:
        member = await members.get(session, place.tenant.id, person_id)
    return render(request, "remove_member.html", place=place, member=member)


@router.post("/{person_id}/remove")
async def remove_member(
    place: ChangesMembers, person_id: str, request: Request, _form: OwnForm, services: ServicesOf
) -> Response:
    """Take the role away."""
    async with services.resources.database.session() as transaction:
        member = await members.get(transaction, place.tenant.id, person_id)
        grantor = place.grantor(services.now())
        await members.remove(transaction, grantor, place.tenant.id, person_id)
    return lead_to(request, _home(place), f"{member.email} is no member any more.")


def _home(place: Place) -> str:
    return f"/console/tenants/{place.tenant.name}/members"


async def _page(
    request: Request,
    services: Services,
    place: Place,
    email: str = "",
    errors: Mapping[str, str] | None = None,
) -> Response:
    async with services.resources.database.reader() as session:
        found = await members.list_members(session, place.tenant.id)
    return render(
        request,
        "members.html",
        400 if errors else 200,
        place=place,
        members=found,
        roles=tuple(TENANT_GRANTS),
        email=email,
        errors=errors or {},
    )
