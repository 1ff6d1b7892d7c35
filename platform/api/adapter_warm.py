"""The route by which a tenant says that it will use an adapter soon. For both APIs."""

from datetime import datetime
from typing import Annotated, Literal, Self

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from loraplex.engine.residency_protocol import Tier
from loraplex.platform.api.bodies import Schema, parse_optional, request_body_of
from loraplex.platform.api.owner import ResourceOwner, Side
from loraplex.platform.deps import ServicesOf, body_of, sticky_of
from loraplex.platform.warming import Hint, Warmed, warm
from loraplex.tenants.api_keys import Principal
from loraplex.tenants.roles import Permission

MIN_TTL_S, DEFAULT_TTL_S, MAX_TTL_S = 10, 60, 600


class WarmBody(Schema):
    """For how long a use is expected."""

    ttl_s: Annotated[int, Field(ge=MIN_TTL_S, le=MAX_TTL_S)] = DEFAULT_TTL_S


class HintView(BaseModel):
    """A hint that holds."""

    object: Literal["adapter.hint"] = "adapter.hint"
    adapter: str
    """`tenant/adapter`."""
    version: int | None
    """That a request would run on now."""
    digest: str
    tier: Tier | None
    """Where the adapter is now; null if the worker does not answer in time."""
    expires_at: datetime

    @classmethod
    def of(cls, warmed: Warmed) -> Self:
        """Show it."""
        target = warmed.target
        return cls(
            adapter=target.name.partition("@")[0],
            version=target.version,
            digest=warmed.digest,
            tier=warmed.tier,
            expires_at=warmed.expires_at,
        )


def warm_routes(side: Side, permission: Permission) -> APIRouter:
    """The route, of the adapters of whoever `side` says, for whoever has the permission."""
    router = APIRouter(tags=["adapters"])
    Owner = Annotated[ResourceOwner, Depends(side.owner_of)]  # noqa: N806  a type

    @router.post(
        "/{name}/warm",
        status_code=202,
        openapi_extra=request_body_of(WarmBody, required=False),
        dependencies=[side.may(permission)],
    )
    async def warm_adapter(
        name: str, request: Request, owner: Owner, services: ServicesOf
    ) -> HintView:
        """Say that requests for an adapter will come, so that it is brought to the device before;
        the name may have an alias or a version, as theirs. A hint: no promise, and no charge."""
        asked = parse_optional(await body_of(request), WarmBody)
        sender, sticky = owner.sender, sticky_of(request)
        hint = Hint(
            tenant_id=owner.tenant_id,
            model=f"{owner.tenant_name}/{name}",
            sticky=owner.request_id if sticky is None else sticky,
            ttl_s=asked.ttl_s,
            may_call=sender.may_call if isinstance(sender, Principal) else _any,
        )
        return HintView.of(await warm(hint, services))

    return router


def _any(_name: str) -> bool:
    """Operators may warm whatever a tenant has."""
    return True
