"""All limits of a tenant: what they allow, what is used, and what is left above them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, cast, get_args

from fastapi import APIRouter, Depends, Query, Request, Response
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.registry import registry
from loraplex.platform.console.access import Form, OwnForm
from loraplex.platform.console.errors import FormRefused
from loraplex.platform.console.pages import lead_to, render
from loraplex.platform.console.permissions import Inside, Place, check
from loraplex.platform.console.route import ConsoleRoute
from loraplex.platform.deps import ServicesOf
from loraplex.platform.limit_standings import LimitStanding, all_limits_of, limit_standings
from loraplex.platform.services import Services, default_limits
from loraplex.tenants import api_keys, limit_changes, prices, projects
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.errors import ValueRefused
from loraplex.tenants.limit_changes import NewLimit, dimension_of
from loraplex.tenants.limit_parents import LimitOwner
from loraplex.tenants.scoped_limits import KINDS, Mode, OnStoreLoss, Scope, ScopedLimit

router = APIRouter(route_class=ConsoleRoute, prefix="/tenants/{name}/limits")

SeesLimits = Annotated[Place, Depends(Inside("limits.read"))]
ChangesLimits = Annotated[Place, Depends(Inside("limits.write"))]
FIELDS = ("owner", "dimension", "value", "burst", "mode", "on_store_loss")
MODES = MappingProxyType(
    {"enforce": "enforce: refuse what is beyond it", "shadow": "shadow: refuse nothing, tell"}
)
ON_STORE_LOSS = MappingProxyType(
    {
        "": "the dimension's own",
        "local": "each gateway allows its part",
        "open": "all is allowed",
        "closed": "nothing is allowed",
    }
)


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A limit that holds, and how it stands."""

    limit: ScopedLimit
    is_default: bool
    """True for the platform's, which holds where the tenant has none of its own."""
    standing: LimitStanding | None
    """None while nobody counts it, since the store that gateways share is away."""


@dataclass(frozen=True, slots=True)
class Owners:
    """Whom limits can be of, as pages name them."""

    names: Mapping[str, str]
    """By `scope:id`."""

    def of(self, row: LimitRow) -> str:
        """The name of a limit's owner."""
        return self.names.get(f"{row.limit.scope}:{row.limit.scope_id}", row.limit.scope_id)

    def find(self, text: str, tenant_id: str) -> LimitOwner:
        """The owner that was chosen. Raises ValueRefused."""
        if text not in self.names:
            raise ValueRefused("Choose one of the list.", "owner")
        scope, _, scope_id = text.partition(":")
        return LimitOwner(tenant_id, cast("Scope", scope), scope_id)


@router.get("")
async def show_limits(
    place: SeesLimits,
    request: Request,
    services: ServicesOf,
    owner: Annotated[str, Query(max_length=100)] = "",
    dimension: Annotated[str, Query(max_length=40)] = "",
) -> Response:
    """All limits; `owner` and `dimension` name the one that the form is filled with."""
    return await _page(request, services, place, chosen=(owner, dimension))


@router.post("")
async def put_limit(
    place: ChangesLimits, request: Request, form: OwnForm, services: ServicesOf
) -> Response:
    """Set a limit, or change one."""
    typed = {field: form.text(field) for field in FIELDS}
    defaults = default_limits(services.resources.settings)
    try:
        async with services.resources.database.session() as transaction:
            owners = await _owners(transaction, place)
            owner = owners.find(typed["owner"], place.tenant.id)
            _check_may(place, owner)
            what, wanted = dimension_of(typed["dimension"]), _new_limit(form)
            grantor = place.grantor(services.now())
            await limit_changes.put(transaction, grantor, owner, what, wanted, defaults)
            warning = await prices.unpriced(transaction, what, services.now())
    except ValueRefused as error:
        return await _page(request, services, place, typed, {error.field: str(error)})
    done = f"{owners.names[typed['owner']]}: {what} is {wanted.value:,}, from the next request on."
    done = f"{done} {warning}" if warning else done
    return lead_to(request, f"/console/tenants/{place.tenant.name}/limits", done)


@router.post("/remove")
async def remove_limit(
    place: ChangesLimits, request: Request, form: OwnForm, services: ServicesOf
) -> Response:
    """Take a limit away; what stands above it holds."""
    async with services.resources.database.session() as transaction:
        owners = await _owners(transaction, place)
        owner = owners.find(form.text("owner"), place.tenant.id)
        _check_may(place, owner)
        what, grantor = dimension_of(form.text("dimension")), place.grantor(services.now())
        await limit_changes.remove(transaction, grantor, owner, what)
    done = f"{owners.names[form.text('owner')]} has no limit of {what} any more."
    return lead_to(request, f"/console/tenants/{place.tenant.name}/limits", done)


def _check_may(place: Place, owner: LimitOwner) -> None:
    """The tenant's own limits are the platform's to set. Raises PermissionMissing."""
    if owner.scope == "tenant":
        check(place.session, place.session.platform, "limits.write")
    else:
        check(place.session, place.held, "limits.write", place.tenant.name)


def _new_limit(form: Form) -> NewLimit:
    values: dict[str, int | None] = {}
    for field in ("value", "burst"):
        try:
            values[field] = form.integer(field)
        except FormRefused as error:
            raise ValueRefused(str(error), field) from None
    if values["value"] is None:
        raise ValueRefused("Say how much.", "value")
    return NewLimit(
        value=values["value"],
        burst=values["burst"],
        mode=cast("Mode", form.text("mode") or "enforce"),
        on_store_loss=cast("OnStoreLoss | None", form.text("on_store_loss") or None),
    )


async def _owners(session: AsyncSession, place: Place) -> Owners:
    tenant = place.tenant
    names = {f"tenant:{tenant.id}": f"tenant {tenant.name}"}
    for project in await projects.list_projects(session, tenant.id):
        names[f"project:{project.id}"] = f"project {project.name}"
    keys = await api_keys.list_keys(session, tenant.id) if "keys.read" in place.held else []
    for key in keys:
        if key.revoked_at is None:
            names[f"key:{key.key_id}"] = f"key {key.label or key.key_id}"
    for version in await registry.list_versions(session, tenant.id):
        adapter = version.model.partition("/")[2]
        names[f"adapter:{adapter}"] = f"adapter {adapter}"
    return Owners(names)


async def limit_rows(services: Services, tenant: TenantRecord) -> list[LimitRow]:
    """Return all limits of the tenant, by scope."""
    resources, now = services.resources, services.now()
    defaults = default_limits(resources.settings)
    async with resources.database.reader() as session:
        limits, of_platform = await all_limits_of(session, tenant, defaults, now)
    found = await limit_standings(resources.quotas, resources.database, tenant.id, limits, now)
    standings = {(each.limit.name, each.limit.scope_id): each for each in found}
    return [
        LimitRow(limit, limit in of_platform, standings.get((limit.name, limit.scope_id)))
        for limit in limits
    ]


async def _page(
    request: Request,
    services: Services,
    place: Place,
    typed: Mapping[str, str] | None = None,
    errors: Mapping[str, str] | None = None,
    chosen: tuple[str, str] = ("", ""),
) -> Response:
    rows = await limit_rows(services, place.tenant)
    if "keys.read" not in place.held:
        rows = [row for row in rows if row.limit.scope != "key"]
    async with services.resources.database.reader() as session:
        owners = await _owners(session, place)
        price = await prices.price_at(session, services.now())
    may_own = "limits.write" in place.session.platform
    choices = {
        name: text for name, text in owners.names.items() if may_own or name[:7] != "tenant:"
    }
    return render(
        request,
        "limits.html",
        400 if errors else 200,
        place=place,
        rows=rows,
        is_degraded=services.resources.quotas.is_degraded,
        owners=owners,
        currency=None if price is None else price.currency,
        choices=choices,
        may_own=may_own,
        dimensions=tuple(KINDS),
        modes=MODES,
        on_store_loss=ON_STORE_LOSS,
        scopes=get_args(Scope),
        refusals=services.refusals.of(place.tenant.id),
        typed=typed or _filled(rows, chosen),
        errors=errors or {},
    )


def _filled(rows: Sequence[LimitRow], chosen: tuple[str, str]) -> dict[str, str]:
    """The form, filled with the limit that was chosen."""
    owner, dimension = chosen
    filled = dict.fromkeys(FIELDS, "") | {"owner": owner, "dimension": dimension}
    for row in rows:
        limit = row.limit
        if (f"{limit.scope}:{limit.scope_id}", limit.dimension) == chosen:
            burst = str(limit.burst) if limit.kind == "rate" and limit.burst != limit.value else ""
            filled |= {"value": str(limit.value), "burst": burst, "mode": limit.mode}
    return filled
