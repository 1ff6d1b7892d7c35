"""Routes of an adapter's aliases and their canaries. For both APIs."""

from typing import Annotated

import fastapi
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import Field

from loraplex.adapters.registry import aliases
from loraplex.adapters.registry.aliases import Alias, Canary
from loraplex.platform.api.adapter_views import AliasView
from loraplex.platform.api.bodies import Schema, parse_exactly, request_body_of
from loraplex.platform.api.owner import ResourceOwner, Side
from loraplex.platform.api.paging import Listing, Page, listing
from loraplex.platform.deps import ServicesOf, body_of
from loraplex.platform.errors import InvalidRequest

MAX_NUMBER = 999_999_999
Number = Annotated[int, Field(ge=1, le=MAX_NUMBER)]
ALIAS = "/{name}/aliases/{alias}"


class AliasBody(Schema):
    """What an alias is to mean."""

    version: Number
    expected: Annotated[int, Field(ge=0, le=MAX_NUMBER)] | None = None
    """The version that it must mean now; 0 if it must be absent."""


class CanaryBody(Schema):
    """Which part of an alias's requests is to run on which version."""

    version: Number
    percent: Annotated[int, Field(ge=1, le=100)]


def alias_routes(side: Side) -> APIRouter:
    """The routes, of the adapters of whoever `side` says."""
    router = APIRouter(tags=["aliases"])
    _add_reading(router, side)
    _add_moves(router, side)
    _add_canaries(router, side)
    return router


def _add_reading(router: APIRouter, side: Side) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type

    @router.get("/{name}/aliases", dependencies=[side.may("adapters.read")])
    async def list_adapter_aliases(
        name: str, owner: Owner, services: ServicesOf, page: Annotated[Page, fastapi.Query()]
    ) -> Listing[AliasView]:
        """List the aliases of an adapter by name; none if there is no such adapter."""
        async with services.resources.database.reader() as session:
            found = await aliases.list_aliases(session, owner.tenant_id, name)
        return listing([AliasView.of(alias) for alias in found], page)

    @router.get(ALIAS, dependencies=[side.may("adapters.read")])
    async def retrieve_alias(
        name: str, alias: str, owner: Owner, services: ServicesOf, response: Response
    ) -> AliasView:
        """Show an alias. Its ETag is the version that it means."""
        async with services.resources.database.reader() as session:
            return _shown(await aliases.get_alias(session, owner.named(name), alias), response)


def _add_moves(router: APIRouter, side: Side) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type

    @router.put(
        ALIAS, openapi_extra=request_body_of(AliasBody), dependencies=[side.may("adapters.write")]
    )
    async def point_alias(
        name: str,
        alias: str,
        request: Request,
        owner: Owner,
        services: ServicesOf,
        response: Response,
    ) -> AliasView:
        """Let an alias mean a version from the next request on, made if it is absent; with
        `expected`, or `If-Match: "3"`, only if it means that version now."""
        asked = parse_exactly(await body_of(request), AliasBody)
        expected = _expected(asked, request)
        act, adapter = owner.act(services), owner.named(name)
        async with services.resources.database.session() as session:
            moved = await aliases.point(session, act, adapter, alias, asked.version, expected)
        return _shown(moved, response)

    @router.delete(ALIAS, status_code=204, dependencies=[side.may("adapters.write")])
    async def delete_alias(name: str, alias: str, owner: Owner, services: ServicesOf) -> None:
        """Delete an alias; the versions that it named stay."""
        async with services.resources.database.session() as session:
            await aliases.delete_alias(session, owner.act(services), owner.named(name), alias)

    @router.post(f"{ALIAS}/rollback", dependencies=[side.may("adapters.write")])
    async def roll_back_alias(
        name: str, alias: str, owner: Owner, services: ServicesOf, response: Response
    ) -> AliasView:
        """Let an alias mean again what it meant before. Sent twice it has one effect: then there is
        nothing to go back to."""
        act, adapter = owner.act(services), owner.named(name)
        async with services.resources.database.session() as session:
            return _shown(await aliases.roll_back(session, act, adapter, alias), response)


def _add_canaries(router: APIRouter, side: Side) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type

    @router.put(
        f"{ALIAS}/canary",
        openapi_extra=request_body_of(CanaryBody),
        dependencies=[side.may("adapters.write")],
    )
    async def set_canary(
        name: str, alias: str, request: Request, owner: Owner, services: ServicesOf
    ) -> AliasView:
        """Let a part of an alias's requests run on another version."""
        asked = parse_exactly(await body_of(request), CanaryBody)
        canary = Canary(asked.version, asked.percent)
        act, adapter = owner.act(services), owner.named(name)
        async with services.resources.database.session() as session:
            return AliasView.of(await aliases.set_canary(session, act, adapter, alias, canary))

    @router.delete(f"{ALIAS}/canary", dependencies=[side.may("adapters.write")])
    async def clear_canary(name: str, alias: str, owner: Owner, services: ServicesOf) -> AliasView:
        """Let all requests of an alias run on its own version."""
        act, adapter = owner.act(services), owner.named(name)
        async with services.resources.database.session() as session:
            return AliasView.of(await aliases.clear_canary(session, act, adapter, alias))

    @router.post(f"{ALIAS}/canary/promote", dependencies=[side.may("adapters.write")])
    async def promote_canary(
        name: str, alias: str, owner: Owner, services: ServicesOf, response: Response
    ) -> AliasView:
        """Let an alias mean its canary's version, for all requests."""
        act, adapter = owner.act(services), owner.named(name)
        async with services.resources.database.session() as session:
            return _shown(await aliases.promote(session, act, adapter, alias), response)


def _shown(alias: Alias, response: Response) -> AliasView:
    response.headers["etag"] = f'"{alias.version}"'
    return AliasView.of(alias)


def _expected(asked: AliasBody, request: Request) -> int | None:
    """What the alias must mean now, by the body or the header. Raises InvalidRequest."""
    texts = request.headers.getlist("if-match")
    if not texts:
        return asked.expected
    number = texts[0].strip().removeprefix('"').removesuffix('"')
    is_number = number.isascii() and number.isdecimal() and len(number) <= len(str(MAX_NUMBER))
    if len(texts) > 1 or not is_number or asked.expected not in (None, int(number)):
        raise InvalidRequest(
            'If-Match must be the version that the alias means now, such as "3", once, and agree '
            "with expected.",
            "if-match",
        )
    return int(number)
