"""The overview: what the platform did in the last quarter of an hour, and for whom."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from starlette.responses import RedirectResponse

from loraplex.platform.console.access import Session, SignedIn
from loraplex.platform.console.charts import CHARTS
from loraplex.platform.console.composition import console_of
from loraplex.platform.console.pages import render
from loraplex.platform.console.permissions import OnPlatform
from loraplex.platform.console.route import ConsoleRoute
from loraplex.platform.console.sampler import EVERY_S, Point
from loraplex.platform.deps import ServicesOf
from loraplex.tenants import directory
from loraplex.tenants.totals import TenantTotal, totals_by_tenant

router = APIRouter(route_class=ConsoleRoute)

BUSIEST = 8
TABLE_EVERY_S = 60.0
_DIGITS = MappingProxyType({"kv_held": 0, "kv_total": 0, "running": 0, "waiting": 0})


@dataclass(frozen=True, slots=True)
class Busy:
    """One of the tenants that used most."""

    name: str
    total: TenantTotal
    share: float
    """Of all tokens, 0 to 1."""


@router.get("")
async def show_overview(request: Request, session: SignedIn, services: ServicesOf) -> Response:
    """Charts, and the same numbers as tables for whoever has no script; to people of tenants,
    their tenants."""
    if not session.may("platform.read"):
        return RedirectResponse("/console/tenants", 303)
    points = console_of(request).sampler.points()
    return render(
        request,
        "overview.html",
        charts=CHARTS,
        latest=points[-1] if points else None,
        rows=_every(points, TABLE_EVERY_S),
        busiest=await _busiest(services, services.now() - timedelta(hours=1)),
        every_s=EVERY_S,
        is_degraded=services.resources.quotas.is_degraded,
    )


@router.get("/overview/points")
async def get_points(
    request: Request,
    _session: Annotated[Session, Depends(OnPlatform("platform.read"))],
    after_s: float = 0.0,
) -> dict[str, Any]:
    """The points after a time, a list for each of their fields."""
    points = console_of(request).sampler.points(after_s)
    columns = {
        field.name: [_rounded(getattr(point, field.name)) for point in points]
        for field in fields(Point)
    }
    connected = console_of(request).services.resources.engine.connected
    return {"connected": connected, "points": columns}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _every(points: Sequence[Point], pause_s: float) -> list[tuple[datetime, Point]]:
    """Points about `pause_s` apart, newest first."""
    rows: list[tuple[datetime, Point]] = []
    for point in reversed(points):
        at = datetime.fromtimestamp(point.at_s, UTC)
        if not rows or (rows[-1][0] - at).total_seconds() >= pause_s - EVERY_S / 2:
            rows.append((at, point))
    return rows


async def _busiest(services: ServicesOf, since: datetime) -> list[Busy]:
    async with services.resources.database.reader() as session:
        totals = await totals_by_tenant(session, since)
        names = {tenant.id: tenant.name for tenant in await directory.list_tenants(session)}
    tokens = sum(total.tokens for total in totals.values()) or 1
    ranked = sorted(totals.items(), key=lambda item: -item[1].tokens)[:BUSIEST]
    return [Busy(names[tenant], total, total.tokens / tokens) for tenant, total in ranked]
