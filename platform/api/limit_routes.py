"""Routes of the limits of projects, keys and adapters, and for operators of tenants."""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Literal

import fastapi
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.registry import registry
from loraplex.platform.api.bodies import Schema, parse_exactly, request_body_of
from loraplex.platform.api.owner import ResourceOwner, Side
from loraplex.platform.api.paging import Listing, Page, listing
from loraplex.platform.api.repeatable import Post
from loraplex.platform.api.tenancy_views import LimitView, RemovedView
from loraplex.platform.deps import ServicesOf, body_of
from loraplex.platform.services import default_limits
from loraplex.tenants import api_keys, limit_changes, projects
from loraplex.tenants.ids import Entropy
from loraplex.tenants.limit_changes import NewLimit, dimension_of
from loraplex.tenants.limit_parents import LimitOwner
from loraplex.tenants.limit_policies import policy_id

Find = Callable[[AsyncSession, ResourceOwner, str], Awaitable[LimitOwner]]
"""From what a path names to whom its limits are of; raises what it is not found by."""


class LimitBody(Schema):
    """A limit that is to hold."""

    value: int
    """Per minute, at a time or per month, in the dimension's unit."""
    burst: int | None = None
    """Of a limit per minute, what may be used at once; null is a minute's worth."""
    mode: Literal["enforce", "shadow"] = "enforce"
    """`shadow` refuses nothing, and tells what it would have refused."""
    on_store_loss: Literal["local", "open", "closed"] | None = None
    """What holds while the store that gateways share is away; null is the dimension's own."""

    def limit(self) -> NewLimit:
        """What is asked for."""
        return NewLimit(self.value, self.burst, self.mode, self.on_store_loss)


def limit_routes(side: Side) -> APIRouter:
    """The routes of projects, keys and adapters, of whoever `side` says."""
    router = APIRouter(tags=["limits"])
    for path, scope in (
        ("/projects/{project}", "project"),
        ("/keys/{key_id}", "key"),
        ("/adapters/{name}", "adapter"),
    ):
        _add(router, side, path, scope)
    return router


def tenant_limit_routes(side: Side) -> APIRouter:
    """The routes of the tenant's own limits, which no tenant sets for itself."""
    router = APIRouter(tags=["limits"])
    _add(router, side, "", "tenant")
    return router


def _add(router: APIRouter, side: Side, path: str, scope: str) -> None:
    _add_reading(router, side, path, scope)
    _add_setting(router, side, path, scope)
    _add_removal(router, side, path, scope)


def _named(request: Request, path: str) -> str:
    """What the request's path names, of which the limits are."""
    return str(request.path_params.get(path.partition("{")[2].removesuffix("}"), ""))


def _add_reading(router: APIRouter, side: Side, path: str, scope: str) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type
    find = OWNERS[scope]

    @router.get(
        f"{path}/limits",
        dependencies=[side.may("limits.read")],
        name=f"list_{scope}_limits",
        description=f"List the limits of this {scope}; those that stand above it hold, too.",
    )
    async def list_limits(
        request: Request,
        owner: Owner,
        services: ServicesOf,
        page: Annotated[Page, fastapi.Query()],
    ) -> Listing[LimitView]:
        async with services.resources.database.reader() as session:
            of = await find(session, owner, _named(request, path))
            found = await limit_changes.list_limits(session, owner.tenant_id, of)
        return listing([LimitView.of(stored) for stored in found], page)


def _add_setting(router: APIRouter, side: Side, path: str, scope: str) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type
    find = OWNERS[scope]

    @router.put(
        f"{path}/limits/{{dimension}}",
        response_model=LimitView,
        openapi_extra=request_body_of(LimitBody),
        dependencies=[side.may("limits.write")],
        name=f"put_{scope}_limit",
        description=f"Set a limit of this {scope}, from the next request on: at most what stands "
        "above it.",
    )
    async def put_limit(
        dimension: str, request: Request, owner: Owner, services: ServicesOf
    ) -> Response:
        wanted = parse_exactly(await body_of(request), LimitBody).limit()
        grantor, what = owner.grantor(services), dimension_of(dimension)
        defaults = default_limits(services.resources.settings)

        async def work(session: AsyncSession, _entropy: Entropy) -> LimitView:
            of = await find(session, owner, _named(request, path))
            stored = await limit_changes.put(session, grantor, of, what, wanted, defaults)
            return LimitView.of(stored)

        return await Post(request, owner.sender, services, status=200).serve(work)


def _add_removal(router: APIRouter, side: Side, path: str, scope: str) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type
    find = OWNERS[scope]

    @router.delete(
        f"{path}/limits/{{dimension}}",
        response_model=RemovedView,
        dependencies=[side.may("limits.write")],
        name=f"remove_{scope}_limit",
        description=f"Take a limit of this {scope} away; what stands above it holds.",
    )
    async def remove_limit(
        dimension: str, request: Request, owner: Owner, services: ServicesOf
    ) -> Response:
        grantor, what = owner.grantor(services), dimension_of(dimension)

        async def work(session: AsyncSession, _entropy: Entropy) -> RemovedView:
            of = await find(session, owner, _named(request, path))
            await limit_changes.remove(session, grantor, of, what)
            return RemovedView(id=policy_id(of.tenant_id, of.scope, of.scope_id, what))

        return await Post(request, owner.sender, services, status=200).serve(work)


async def _tenant(_session: AsyncSession, owner: ResourceOwner, _named: str) -> LimitOwner:
    return LimitOwner(owner.tenant_id, "tenant", owner.tenant_id)


async def _project(session: AsyncSession, owner: ResourceOwner, named: str) -> LimitOwner:
    found = await projects.get(session, owner.tenant_id, named)
    return LimitOwner(owner.tenant_id, "project", found.id)


async def _key(session: AsyncSession, owner: ResourceOwner, key_id: str) -> LimitOwner:
    # Its own limits are told to every key; of others it does not hear that they exist.
    if key_id != owner.sender.key_id and "keys.read" not in owner.sender.permissions:
        raise api_keys.not_found(key_id)
    found = await api_keys.get_key(session, owner.tenant_id, key_id)
    return LimitOwner(owner.tenant_id, "key", found.key_id)


async def _adapter(session: AsyncSession, owner: ResourceOwner, name: str) -> LimitOwner:
    await registry.list_all_versions(session, owner.named(name))
    return LimitOwner(owner.tenant_id, "adapter", name)


OWNERS: Mapping[str, Find] = MappingProxyType(
    {"tenant": _tenant, "project": _project, "key": _key, "adapter": _adapter}
)
"""How whoever a limit is of is found, by scope."""
