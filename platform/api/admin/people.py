"""`/admin/v1/people`: people who sign in to the console, and their roles everywhere."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.platform.api.bodies import Schema, parse_exactly, request_body_of
from loraplex.platform.api.owner import act_of, tenant_of
from loraplex.platform.api.paging import Listing, Page, listing
from loraplex.platform.api.person_views import PersonView
from loraplex.platform.api.repeatable import Post
from loraplex.platform.deps import Admin, ServicesOf, body_of
from loraplex.platform.permissions import operator_may
from loraplex.tenants import console_sessions, memberships, people
from loraplex.tenants.ids import Entropy

router = APIRouter(prefix="/admin/v1/people", tags=["people"])


class PersonBody(Schema):
    """A new person, who has no role yet."""

    email: str
    name: str = ""


class PersonChangeBody(Schema):
    """Whether a person may sign in."""

    status: Literal["active", "disabled"]


class PasswordBody(Schema):
    """A password of 12 to 1000 characters."""

    password: str

    def __repr__(self) -> str:
        return "PasswordBody()"


class GrantBody(Schema):
    """A role on the platform or in a tenant, instead of the one that the person had there; null
    takes that one away."""

    role: str | None
    tenant: str | None = None
    """Name or id; null for the platform's own roles."""


@router.post(
    "",
    status_code=201,
    response_model=PersonView,
    openapi_extra=request_body_of(PersonBody),
    dependencies=[operator_may("people.write")],
)
async def add_person(request: Request, admin: Admin, services: ServicesOf) -> Response:
    """Add a person."""
    asked = parse_exactly(await body_of(request), PersonBody)
    act = act_of(request, admin, services)

    async def work(session: AsyncSession, entropy: Entropy) -> PersonView:
        return PersonView.of(await people.add(session, act, asked.email, asked.name, entropy))

    return await Post(request, admin, services).serve(work)


@router.get("", dependencies=[operator_may("people.read")])
async def list_people(
    _admin: Admin, services: ServicesOf, page: Annotated[Page, Query()]
) -> Listing[PersonView]:
    """List all people, by address."""
    async with services.resources.database.reader() as session:
        found = await people.list_people(session)
    return listing([PersonView.of(person) for person in found], page)


@router.get("/{person}", dependencies=[operator_may("people.read")])
async def retrieve_person(person: str, _admin: Admin, services: ServicesOf) -> PersonView:
    """Show a person, found by id or e-mail address."""
    async with services.resources.database.reader() as session:
        return PersonView.of(await people.named(session, person))


@router.patch(
    "/{person}",
    response_model=PersonView,
    openapi_extra=request_body_of(PersonChangeBody),
    dependencies=[operator_may("people.write")],
)
async def change_person(
    person: str, request: Request, admin: Admin, services: ServicesOf
) -> Response:
    """Keep a person out, whose sessions end at once, or let them in again. Of people with a role
    on the platform this needs `owners.write`, as do the routes below."""
    asked = parse_exactly(await body_of(request), PersonChangeBody)
    act = act_of(request, admin, services)

    async def work(session: AsyncSession, _entropy: Entropy) -> PersonView:
        found = await people.named(session, person)
        admin.check(found.needed_to_change)
        return PersonView.of(await people.set_status(session, act, found.id, asked.status))

    return await Post(request, admin, services, status=200).serve(work)


@router.put(
    "/{person}/password",
    openapi_extra=request_body_of(PasswordBody),
    dependencies=[operator_may("people.write")],
)
async def set_password(
    person: str, request: Request, admin: Admin, services: ServicesOf
) -> PersonView:
    """Give a person a password; the person's sessions end. The same again changes nothing more, so
    no Idempotency-Key is read: its record would hold a digest of the password."""
    asked = parse_exactly(await body_of(request), PasswordBody)
    hashed = await services.passwords.hash(asked.password)
    act = act_of(request, admin, services)
    async with services.resources.database.session() as session:
        found = await people.named(session, person)
        admin.check(found.needed_to_change)
        return PersonView.of(await people.set_password(session, act, found.id, hashed))


@router.post(
    "/{person}/roles",
    response_model=PersonView,
    openapi_extra=request_body_of(GrantBody),
    dependencies=[operator_may("people.write")],
)
async def grant_role(person: str, request: Request, admin: Admin, services: ServicesOf) -> Response:
    """Give a person a role, or take it away. The platform's own need `owners.write`."""
    asked = parse_exactly(await body_of(request), GrantBody)
    act = act_of(request, admin, services)

    async def work(session: AsyncSession, entropy: Entropy) -> PersonView:
        found = await people.named(session, person)
        place = None if asked.tenant is None else (await tenant_of(session, asked.tenant)).id
        admin.check(memberships.needed_to_grant(place))
        if asked.role is None:
            await memberships.revoke(session, act, found.id, place)
        else:
            await memberships.grant(session, act, found.id, asked.role, place, entropy)
        return PersonView.of(await people.get(session, found.id))

    return await Post(request, admin, services, status=200).serve(work)


@router.post(
    "/{person}/unlink",
    response_model=PersonView,
    dependencies=[operator_may("people.write")],
)
async def unlink_person(
    person: str, request: Request, admin: Admin, services: ServicesOf
) -> Response:
    """Forget by which issuer a person signs in; the next identity with the address is linked."""
    act = act_of(request, admin, services)

    async def work(session: AsyncSession, _entropy: Entropy) -> PersonView:
        found = await people.named(session, person)
        admin.check(found.needed_to_change)
        return PersonView.of(await people.unlink(session, act, found.id))

    return await Post(request, admin, services, status=200).serve(work)


@router.post(
    "/{person}/sign-out",
    response_model=PersonView,
    dependencies=[operator_may("people.write")],
)
async def sign_person_out(
    person: str, request: Request, admin: Admin, services: ServicesOf
) -> Response:
    """End all sessions of a person."""

    async def work(session: AsyncSession, _entropy: Entropy) -> PersonView:
        found = await people.named(session, person)
        admin.check(found.needed_to_change)
        await console_sessions.end_all(session, found.id)
        return PersonView.of(found)

    return await Post(request, admin, services, status=200).serve(work)
