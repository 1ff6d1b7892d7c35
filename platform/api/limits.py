"""`GET /v1/limits`: what a key is limited by, and how much of it is left."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal, Self

import fastapi
from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field

from loraplex.adapters.registry import names
from loraplex.platform.api.owner import OPERATORS, ResourceOwner
from loraplex.platform.api.paging import Query
from loraplex.platform.deps import Caller, ServicesOf
from loraplex.platform.limit_standings import (
    LimitStanding,
    Subject,
    limit_standings,
    limits_of,
)
from loraplex.platform.permissions import caller_may
from loraplex.platform.services import Services, default_limits
from loraplex.tenants import directory
from loraplex.tenants.scoped_limits import Dimension, Mode, Scope, ScopedLimit

router = APIRouter(tags=["limits"])
operators_router = APIRouter(tags=["limits"])
"""Below a tenant's path."""


class LimitsQuery(Query):
    """For which requests the limits are shown."""

    model: Annotated[str, Field(max_length=300)] | None = None
    """Those on this model, by any name that a completion may use for it; null leaves out what is
    limited by adapter."""


class StandingView(BaseModel):
    """How a limit stands now."""

    model_config = ConfigDict(frozen=True)

    object: Literal["limit"] = "limit"
    name: str
    """As headers and errors call it: `project/tokens_per_minute`."""
    scope: Scope
    scope_id: str
    dimension: Dimension
    value: int
    """Per minute, at a time or per month, in the dimension's unit."""
    burst: int
    """Of a limit per minute, what may be used at once; else as `value`."""
    mode: Mode
    """`shadow` refuses nothing, and tells what it would have refused."""
    used: int
    remaining: int
    """What fits now, as far as this limit goes."""
    parent_remaining: int | None
    """The least that is left of limits of this dimension that stand above it."""
    available: int
    """What is really left: the least of both."""
    resets_at: datetime | None
    """When all of it is free again; null of what is open at a time."""
    reset_s: int | None
    """The same in seconds from now, rounded up."""

    @classmethod
    def of(cls, standing: LimitStanding) -> Self:
        """Show it."""
        limit = standing.limit
        return cls(
            name=limit.name,
            scope=limit.scope,
            scope_id=limit.scope_id,
            dimension=limit.dimension,
            value=limit.value,
            burst=limit.burst,
            mode=limit.mode,
            used=standing.used,
            remaining=standing.remaining,
            parent_remaining=standing.parent_remaining,
            available=standing.available,
            resets_at=standing.resets_at,
            reset_s=standing.reset_s,
        )


class LimitsView(BaseModel):
    """All limits of some requests."""

    model_config = ConfigDict(frozen=True)

    object: Literal["list"] = "list"
    data: Sequence[StandingView]
    service_tiers: Sequence[str]
    """Those that requests may ask for; others are served in the best of these."""
    time_zone: str
    """Whose months budgets are of."""


@router.get("/v1/limits", dependencies=[caller_may("limits.read")])
async def list_limits(
    caller: Caller, services: ServicesOf, asked: Annotated[LimitsQuery, fastapi.Query()]
) -> LimitsView:
    """List the limits that requests with this key are admitted by, of every scope, as they stand
    now. Limits that nobody counts, while the store of quotas is away, are left out."""
    now = services.now()
    edition = await services.catalogue.current()
    adapter = None
    if asked.model is not None:
        base = services.resources.engine.model.name
        meaning = await edition.meaning(caller.tenant_id, asked.model, base)
        target = meaning.chosen(caller.tenant_id, "")
        if not caller.may_call(target.name):
            raise names.not_found(asked.model)
        adapter = target.adapter
    limits = await edition.limits(caller, adapter, now)
    standings = await _standings(services, caller.tenant_id, limits, now)
    return LimitsView(
        data=standings, service_tiers=caller.service_tiers, time_zone=caller.time_zone
    )


class SubjectQuery(Query):
    """For which of a tenant's requests the limits are shown."""

    project_id: Annotated[str, Field(max_length=100)] | None = None
    key_id: Annotated[str, Field(max_length=100)] | None = None
    """Its project is a part of it."""
    adapter: Annotated[str, Field(max_length=100)] | None = None
    """Name of one of the tenant's."""


@operators_router.get("/limits/standings", dependencies=[OPERATORS.may("limits.read")])
async def list_limit_standings(
    owner: Annotated[ResourceOwner, Depends(OPERATORS.owner_of)],
    services: ServicesOf,
    asked: Annotated[SubjectQuery, fastapi.Query()],
) -> LimitsView:
    """List the limits of a tenant, and of a project, a key or an adapter of it, as they stand."""
    now, defaults = services.now(), default_limits(services.resources.settings)
    subject = Subject(asked.project_id, asked.key_id, asked.adapter)
    async with services.resources.database.reader() as session:
        tenant = await directory.get(session, owner.tenant_id)
        limits = await limits_of(session, tenant, subject, defaults, now)
    return LimitsView(
        data=await _standings(services, tenant.id, limits, now),
        service_tiers=tenant.service_tiers,
        time_zone=tenant.time_zone,
    )


async def _standings(
    services: Services, tenant_id: str, limits: Sequence[ScopedLimit], now: datetime
) -> list[StandingView]:
    resources = services.resources
    found = await limit_standings(resources.quotas, resources.database, tenant_id, limits, now)
    return [StandingView.of(standing) for standing in found]
