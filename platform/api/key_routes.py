"""Routes of a tenant's API keys. For both APIs."""

from typing import Annotated

import fastapi
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.platform.api.bodies import parse_exactly, parse_optional, request_body_of
from loraplex.platform.api.key_schemas import KeyBody, KeyChangeBody, RotationBody
from loraplex.platform.api.owner import ResourceOwner, Side
from loraplex.platform.api.paging import Listing, Page, listing
from loraplex.platform.api.repeatable import Post
from loraplex.platform.api.tenancy_views import KeyView, NewKeyView
from loraplex.platform.deps import ServicesOf, body_of
from loraplex.tenants import api_keys, directory, key_changes, projects
from loraplex.tenants.ids import Entropy
from loraplex.tenants.key_text import random_key, renewed_key

KEY = "/keys/{key_id}"


class KeyPage(Page):
    """Which keys are listed."""

    project: str | None = None
    """Name or id of the project whose keys are asked for."""


def key_routes(side: Side) -> APIRouter:
    """The routes, of whoever `side` says."""
    router = APIRouter(tags=["keys"])
    _add_reading(router, side)
    _add_making(router, side)
    _add_changes(router, side)
    _add_rotation(router, side)
    _add_end_of_grace(router, side)
    return router


def _add_reading(router: APIRouter, side: Side) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type

    @router.get("/keys", dependencies=[side.may("keys.read")])
    async def list_keys(
        owner: Owner, services: ServicesOf, asked: Annotated[KeyPage, fastapi.Query()]
    ) -> Listing[KeyView]:
        """List the tenant's API keys, oldest first; the keys themselves are not kept."""
        async with services.resources.database.reader() as session:
            project_id = None
            if asked.project is not None:
                project_id = (await projects.get(session, owner.tenant_id, asked.project)).id
            keys = await api_keys.list_keys(session, owner.tenant_id, project_id)
        return listing([KeyView.of(key) for key in keys], asked)

    @router.get(KEY, dependencies=[side.may("keys.read")])
    async def retrieve_key(key_id: str, owner: Owner, services: ServicesOf) -> KeyView:
        """Show what an API key may; the key itself is not kept."""
        async with services.resources.database.reader() as session:
            return KeyView.of(await api_keys.get_key(session, owner.tenant_id, key_id))


def _add_making(router: APIRouter, side: Side) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type

    @router.post(
        "/keys",
        status_code=201,
        response_model=NewKeyView,
        openapi_extra=request_body_of(KeyBody),
        dependencies=[side.may("keys.write")],
    )
    async def create_key(request: Request, owner: Owner, services: ServicesOf) -> Response:
        """Make an API key. The answer is the only place where the key is shown."""
        wanted = parse_exactly(await body_of(request), KeyBody).new_key()
        grantor = owner.grantor(services)
        pepper = services.resources.pepper

        async def work(session: AsyncSession, entropy: Entropy) -> NewKeyView:
            tenant = await directory.get(session, owner.tenant_id)
            minted = await key_changes.create(session, grantor, tenant, wanted, pepper, entropy)
            key = await api_keys.get_key(session, owner.tenant_id, minted.key_id)
            return NewKeyView.with_text(key, minted.text)

        def secrets(entropy: Entropy) -> dict[str, str]:
            return {"key": random_key(api_keys.PREFIX, entropy).text}

        return await Post(request, owner.sender, services).serve(work, secrets)


def _add_changes(router: APIRouter, side: Side) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type

    @router.patch(
        KEY,
        response_model=KeyView,
        openapi_extra=request_body_of(KeyChangeBody),
        dependencies=[side.may("keys.write")],
    )
    async def change_key(
        key_id: str, request: Request, owner: Owner, services: ServicesOf
    ) -> Response:
        """Change what an API key may, from its next request on."""
        asked = parse_exactly(await body_of(request), KeyChangeBody)
        grantor = owner.grantor(services)

        async def work(session: AsyncSession, _entropy: Entropy) -> KeyView:
            change = asked.change()
            return KeyView.of(
                await key_changes.change(session, grantor, owner.tenant_id, key_id, change)
            )

        return await Post(request, owner.sender, services, status=200).serve(work)

    @router.post(f"{KEY}/revoke", response_model=KeyView, dependencies=[side.may("keys.write")])
    async def revoke_key(
        key_id: str, request: Request, owner: Owner, services: ServicesOf
    ) -> Response:
        """Revoke an API key for ever; one that is revoked already keeps its time."""
        act = owner.act(services)

        async def work(session: AsyncSession, _entropy: Entropy) -> KeyView:
            await key_changes.revoke(session, act, owner.tenant_id, key_id)
            return KeyView.of(await api_keys.get_key(session, owner.tenant_id, key_id))

        return await Post(request, owner.sender, services, status=200).serve(work)


def _add_end_of_grace(router: APIRouter, side: Side) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type

    @router.post(
        f"{KEY}/revoke-previous", response_model=KeyView, dependencies=[side.may("keys.write")]
    )
    async def revoke_previous_secret(
        key_id: str, request: Request, owner: Owner, services: ServicesOf
    ) -> Response:
        """End the grace of the secret before the last rotation; no effect without one."""
        act = owner.act(services)

        async def work(session: AsyncSession, _entropy: Entropy) -> KeyView:
            return KeyView.of(
                await key_changes.revoke_previous(session, act, owner.tenant_id, key_id)
            )

        return await Post(request, owner.sender, services, status=200).serve(work)


def _add_rotation(router: APIRouter, side: Side) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type

    @router.post(
        f"{KEY}/rotate",
        response_model=NewKeyView,
        openapi_extra=request_body_of(RotationBody, required=False),
        dependencies=[side.may("keys.write")],
    )
    async def rotate_key(
        key_id: str, request: Request, owner: Owner, services: ServicesOf
    ) -> Response:
        """Give an API key another secret under the same id; the one before opens for the grace.
        The answer is the only place where the key is shown; whoever lost it rotates again."""
        grace = parse_optional(await body_of(request), RotationBody).grace()
        grantor = owner.grantor(services)
        pepper = services.resources.pepper

        async def work(session: AsyncSession, entropy: Entropy) -> NewKeyView:
            rotated = await key_changes.rotate(
                session, grantor, owner.tenant_id, key_id, grace, pepper, entropy
            )
            key = await api_keys.get_key(session, owner.tenant_id, key_id)
            return NewKeyView.with_text(key, rotated.text)

        def secrets(entropy: Entropy) -> dict[str, str]:
            return {"key": renewed_key(api_keys.PREFIX, key_id, entropy).text}

        return await Post(request, owner.sender, services, status=200).serve(work, secrets)
