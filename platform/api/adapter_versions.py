"""Routes of an adapter's life: shown, retired, restored, pinned, deleted. For both APIs."""

import re
from typing import Annotated, Literal

import fastapi
from fastapi import APIRouter, Depends, Path
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from loraplex.adapters.registry import life_cycle, pins, registry
from loraplex.platform.api.adapter_views import AdapterView
from loraplex.platform.api.owner import ResourceOwner, Side, show_adapter, show_version
from loraplex.platform.api.paging import Listing, Page, Query, listing
from loraplex.platform.api.views import AdapterVersionView
from loraplex.platform.deps import ServicesOf


def _digits(text: object) -> object:
    """Refuse other ways to write a number, so that each version has one URL."""
    if not re.fullmatch("[1-9][0-9]*", str(text)):
        raise PydanticCustomError("digits", "must be digits without a leading zero")
    return text


Number = Annotated[int, BeforeValidator(_digits), Path(ge=1, le=999_999_999)]
VERSION = "/{name}/versions/{number}"


class DeletionQuery(Query):
    """How a deletion ends the requests that run."""

    mode: Literal["drain", "force"] = "drain"
    """`drain` lets them end; `force` ends them, and takes aliases along."""


class RetirementQuery(Query):
    """Whether aliases keep a version."""

    force: bool = False
    """True deletes aliases that mean it, and ends its canaries."""


def version_routes(side: Side) -> APIRouter:
    """The routes, of the adapters of whoever `side` says."""
    router = APIRouter(tags=["adapters"])
    _add_reading(router, side)
    _add_retirement(router, side)
    _add_pins(router, side)
    _add_deletion(router, side)
    return router


def _add_reading(router: APIRouter, side: Side) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type

    @router.get("/{name}", dependencies=[side.may("adapters.read")])
    async def retrieve_adapter(name: str, owner: Owner, services: ServicesOf) -> AdapterView:
        """Show an adapter: its newest versions and its aliases."""
        async with services.resources.database.reader() as session:
            return await show_adapter(session, owner.named(name))

    @router.get("/{name}/versions", dependencies=[side.may("adapters.read")])
    async def list_adapter_versions(
        name: str, owner: Owner, services: ServicesOf, page: Annotated[Page, fastapi.Query()]
    ) -> Listing[AdapterVersionView]:
        """List all versions of an adapter, deleted ones too, newest first."""
        async with services.resources.database.reader() as session:
            versions = await registry.list_all_versions(session, owner.named(name))
        return listing([AdapterVersionView.of(version) for version in versions], page)

    @router.get(VERSION, dependencies=[side.may("adapters.read")])
    async def retrieve_adapter_version(
        name: str, number: Number, owner: Owner, services: ServicesOf
    ) -> AdapterVersionView:
        """Show one version."""
        async with services.resources.database.reader() as session:
            return await show_version(session, owner.named(name), number)


def _add_retirement(router: APIRouter, side: Side) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type

    @router.post(f"{VERSION}/retire", dependencies=[side.may("adapters.write")])
    async def retire_adapter_version(
        name: str,
        number: Number,
        owner: Owner,
        services: ServicesOf,
        asked: Annotated[RetirementQuery, fastapi.Query()],
    ) -> AdapterVersionView:
        """Let no new request find a version; those that run on it go on."""
        adapter = owner.named(name)
        async with services.resources.database.session() as session:
            act = owner.act(services)
            await life_cycle.retire(session, act, adapter, number, force=asked.force)
            return await show_version(session, adapter, number)

    @router.post(f"{VERSION}/restore", dependencies=[side.may("adapters.write")])
    async def restore_adapter_version(
        name: str, number: Number, owner: Owner, services: ServicesOf
    ) -> AdapterVersionView:
        """Let requests find a retired version again."""
        adapter = owner.named(name)
        async with services.resources.database.session() as session:
            await life_cycle.restore(session, owner.act(services), adapter, number)
            return await show_version(session, adapter, number)


def _add_pins(router: APIRouter, side: Side) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type

    @router.put(f"{VERSION}/pin", dependencies=[side.may("adapters.write")])
    async def pin_adapter_version(
        name: str, number: Number, owner: Owner, services: ServicesOf
    ) -> AdapterVersionView:
        """Keep a version in the worker's memory, as far as the tenant may."""
        adapter = owner.named(name)
        async with services.resources.database.session() as session:
            await pins.pin(session, owner.act(services), adapter, number)
            return await show_version(session, adapter, number)

    @router.delete(f"{VERSION}/pin", dependencies=[side.may("adapters.write")])
    async def unpin_adapter_version(
        name: str, number: Number, owner: Owner, services: ServicesOf
    ) -> AdapterVersionView:
        """Let a version be pushed out of the worker's memory again."""
        adapter = owner.named(name)
        async with services.resources.database.session() as session:
            await pins.unpin(session, owner.act(services), adapter, number)
            return await show_version(session, adapter, number)


def _add_deletion(router: APIRouter, side: Side) -> None:
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type

    @router.delete(VERSION, status_code=202, dependencies=[side.may("adapters.write")])
    async def delete_adapter_version(
        name: str,
        number: Number,
        owner: Owner,
        services: ServicesOf,
        asked: Annotated[DeletionQuery, fastapi.Query()],
    ) -> AdapterVersionView:
        """Begin to delete a version: no new request finds it, and when none runs on it any more,
        its bytes are removed."""
        adapter = owner.named(name)
        async with services.resources.database.session() as session:
            act = owner.act(services)
            await life_cycle.delete_version(session, act, adapter, number, asked.mode)
            view = await show_version(session, adapter, number)
        services.adapter_deletions.soon()
        return view

    @router.delete("/{name}", status_code=202, dependencies=[side.may("adapters.write")])
    async def delete_adapter(
        name: str,
        owner: Owner,
        services: ServicesOf,
        asked: Annotated[DeletionQuery, fastapi.Query()],
    ) -> AdapterView:
        """Begin to delete all versions of an adapter; its aliases go at once."""
        adapter = owner.named(name)
        async with services.resources.database.session() as session:
            await life_cycle.delete_adapter(session, owner.act(services), adapter, asked.mode)
            view = await show_adapter(session, adapter)
        services.adapter_deletions.soon()
        return view
