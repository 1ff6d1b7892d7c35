"""Routes of a tenant's members. For both APIs."""

from typing import Annotated

import fastapi
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.platform.api.bodies import Schema, parse_exactly, request_body_of
from loraplex.platform.api.owner import ResourceOwner, Side
from loraplex.platform.api.paging import Listing, Page, listing
from loraplex.platform.api.repeatable import Post
from loraplex.platform.api.tenancy_views import MemberView, RemovedMemberView
from loraplex.platform.deps import ServicesOf, body_of
from loraplex.tenants import members
from loraplex.tenants.ids import Entropy

MEMBER = "/members/{person_id}"


class MemberBody(Schema):
    """Somebody who gets a role in the tenant, and with it a way into the console."""

    email: str
    role: str
    """`tenant_admin`, `developer` or `read_only`."""


class RoleBody(Schema):
    """Another role of a member."""

    role: str


def member_routes(side: Side) -> APIRouter:
    """The routes, of whoever `side` says."""
    router = APIRouter(tags=["members"])
    _add_reading(router, side)
    _add_adding(router, side)
    _add_changing(router, side)
    return router


def _add_reading(router: APIRouter, side: Side) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type

    @router.get("/members", dependencies=[side.may("people.read")])
    async def list_members(
        owner: Owner, services: ServicesOf, page: Annotated[Page, fastapi.Query()]
    ) -> Listing[MemberView]:
        """List the people who have a role in the tenant, by address."""
        async with services.resources.database.reader() as session:
            found = await members.list_members(session, owner.tenant_id)
        return listing([MemberView.of(member) for member in found], page)

    @router.get(MEMBER, dependencies=[side.may("people.read")])
    async def retrieve_member(person_id: str, owner: Owner, services: ServicesOf) -> MemberView:
        """Show a member."""
        async with services.resources.database.reader() as session:
            return MemberView.of(await members.get(session, owner.tenant_id, person_id))


def _add_adding(router: APIRouter, side: Side) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type

    @router.post(
        "/members",
        status_code=201,
        response_model=MemberView,
        openapi_extra=request_body_of(MemberBody),
        dependencies=[side.may("people.write")],
    )
    async def add_member(request: Request, owner: Owner, services: ServicesOf) -> Response:
        """Give whoever has the address a role in the tenant; a new person signs in by the
        platform's issuer, or by a password that the platform sets."""
        asked = parse_exactly(await body_of(request), MemberBody)
        grantor = owner.grantor(services)

        async def work(session: AsyncSession, entropy: Entropy) -> MemberView:
            return MemberView.of(
                await members.add(
                    session, grantor, owner.tenant_id, asked.email, asked.role, entropy
                )
            )

        return await Post(request, owner.sender, services).serve(work)


def _add_changing(router: APIRouter, side: Side) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type

    @router.patch(
        MEMBER,
        response_model=MemberView,
        openapi_extra=request_body_of(RoleBody),
        dependencies=[side.may("people.write")],
    )
    async def change_member(
        person_id: str, request: Request, owner: Owner, services: ServicesOf
    ) -> Response:
        """Give a member another role, from the next page on."""
        asked = parse_exactly(await body_of(request), RoleBody)
        grantor = owner.grantor(services)

        async def work(session: AsyncSession, entropy: Entropy) -> MemberView:
            return MemberView.of(
                await members.change_role(
                    session, grantor, owner.tenant_id, person_id, asked.role, entropy
                )
            )

        return await Post(request, owner.sender, services, status=200).serve(work)

    @router.delete(
        MEMBER, response_model=RemovedMemberView, dependencies=[side.may("people.write")]
    )
    async def remove_member(
        person_id: str, request: Request, owner: Owner, services: ServicesOf
    ) -> Response:
        """Take a member's role away, from the next page on."""
        grantor = owner.grantor(services)

        async def work(session: AsyncSession, _entropy: Entropy) -> RemovedMemberView:
            await members.remove(session, grantor, owner.tenant_id, person_id)
            return RemovedMemberView(id=person_id)

        return await Post(request, owner.sender, services, status=200).serve(work)
