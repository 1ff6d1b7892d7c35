"""What is where in the worker's memory, with the names that people know: for the admin API and
`loraplex adapter top`."""

from typing import Literal, Self, get_args

from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.registry.model_names import names_of_adapters, names_of_tenants
from loraplex.adapters.residency_counts import CAUSES, Cause, Route, TierName
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.residency_protocol import (
    AdapterRow,
    EvictedRow,
    LinkStatus,
    Pin,
    ResidencyReport,
    SinceStart,
    Source,
    Tier,
    TierTotals,
    Why,
)


class TierView(BaseModel):
    """One memory for adapters."""

    capacity_bytes: int
    held_bytes: int
    num_adapters: int

    @classmethod
    def of(cls, totals: TierTotals) -> Self:
        """Show it."""
        return cls(
            capacity_bytes=totals.capacity_bytes,
            held_bytes=totals.held_bytes,
            num_adapters=totals.num_adapters,
        )


class TiersView(BaseModel):
    """The memories."""

    device: TierView
    host: TierView


class AdapterNameView(BaseModel):
    """An adapter, as a tenant knows it."""

    tenant: str
    """Its name; its id if there is none of it."""
    model: str | None
    """`tenant/adapter@version`; null for what is not in the database."""
    digest: str


class ResidentView(AdapterNameView):
    """One adapter that is in memory, or that requests wait for."""

    tier: Tier
    why: Why
    device_bytes: int
    host_bytes: int
    leases: int
    """Requests that run on it, or have begun to wait for it."""
    num_waiting: int
    """Requests that wait and need it."""
    loaded_percent: int | None
    """Layers of it on the device; null unless it is loading."""
    is_pinned: bool
    idle_s: float | None
    """Since a request used it last; null if none did since it came to the device."""


class PrefetchesView(BaseModel):
    """What became of prefetches; what is neither claimed nor wasted is still there."""

    num_started: int
    num_claimed: int
    num_wasted: int
    wasted_bytes: int


class SinceStartView(BaseModel):
    """What has happened since the worker's start."""

    routes: dict[Route, int]
    """Requests that began to run on an adapter, by how they came to."""
    loads: dict[Source, int]
    """Loads that were started, prefetches too, by where they came from."""
    prefetches: PrefetchesView
    evictions: dict[TierName, dict[Cause, int]]

    @classmethod
    def of(cls, seen: SinceStart) -> Self:
        """Show it, with zeros for what has not happened."""
        prefetches = seen.prefetches
        return cls(
            routes={route: seen.routes.get(route, 0) for route in get_args(Route)},
            loads={source: seen.loads.get(source, 0) for source in get_args(Source)},
            prefetches=PrefetchesView(
                num_started=prefetches.num_started,
                num_claimed=prefetches.num_claimed,
                num_wasted=prefetches.num_wasted,
                wasted_bytes=prefetches.wasted_bytes,
            ),
            evictions={
                tier: {cause: seen.evictions.get(tier, {}).get(cause, 0) for cause in causes}
                for tier, causes in CAUSES.items()
            },
        )


class LinkView(BaseModel):
    """The way from the host to the device, over which adapters are copied."""

    limit_bytes_per_s: float | None
    """What it is throttled to; null if it is not."""
    measured_bytes_per_s: float | None
    """Of late; null before the first copy."""
    in_flight_bytes: int
    """Of adapters that are on their way, what has not come."""


class EvictedView(AdapterNameView):
    """One adapter that lost its memory in one tier."""

    tier: TierName
    cause: Cause
    ago_s: float


class RefusedView(BaseModel):
    """Promises that do not hold, since they would take too much."""

    pins: list[AdapterNameView]
    floors: list[str]
    """Tenants."""
    host_floors: list[str]
    """Tenants; of the host's memory."""


class ResidencyView(BaseModel):
    """What is where and why."""

    object: Literal["residency"] = "residency"
    tiers: TiersView
    adapters: list[ResidentView]
    """The nearest tier first, then the ones used last."""
    since_start: SinceStartView
    link: LinkView
    num_cold_passes: int
    """Requests that are computed while their adapters are on their way."""
    num_assistants: int
    """Processes of the host that could compute adapters' parts meanwhile."""
    last_evictions: list[EvictedView]
    """The newest first, 64 at most."""
    refused: RefusedView


async def residency_view(session: AsyncSession, report: ResidencyReport) -> ResidencyView:
    """Put the names to a report."""
    keys = [AdapterKey(row.tenant, row.adapter) for row in report.adapters]
    keys += [AdapterKey(pin.tenant, pin.adapter) for pin in report.refused_pins]
    keys += [AdapterKey(gone.tenant, gone.adapter) for gone in report.last_evictions]
    models = await names_of_adapters(session, keys)
    ids = [*(key.tenant for key in keys), *report.refused_floors]
    ids += report.refused_host_floors
    tenants = await names_of_tenants(session, ids)

    def named(each: AdapterRow | Pin | EvictedRow) -> AdapterNameView:
        key = AdapterKey(each.tenant, each.adapter)
        return AdapterNameView(
            tenant=tenants.get(key.tenant, key.tenant), model=models.get(key), digest=key.digest
        )

    return ResidencyView(
        tiers=TiersView(device=TierView.of(report.device), host=TierView.of(report.host)),
        adapters=[_resident(named(row), row) for row in report.adapters],
        since_start=SinceStartView.of(report.since_start),
        link=_link(report.cold.link),
        num_cold_passes=report.cold.num_passes,
        num_assistants=report.cold.num_assistants,
        last_evictions=[_evicted(named(gone), gone) for gone in report.last_evictions],
        refused=RefusedView(
            pins=[named(pin) for pin in report.refused_pins],
            floors=[tenants.get(tenant, tenant) for tenant in report.refused_floors],
            host_floors=[tenants.get(tenant, tenant) for tenant in report.refused_host_floors],
        ),
    )


def _link(link: LinkStatus) -> LinkView:
    return LinkView(
        limit_bytes_per_s=link.limit_bytes_per_s,
        measured_bytes_per_s=link.measured_bytes_per_s,
        in_flight_bytes=link.in_flight_bytes,
    )


def _evicted(name: AdapterNameView, gone: EvictedRow) -> EvictedView:
    return EvictedView(**name.model_dump(), tier=gone.tier, cause=gone.cause, ago_s=gone.ago_s)


def _resident(name: AdapterNameView, row: AdapterRow) -> ResidentView:
    return ResidentView(
        **name.model_dump(),
        tier=row.tier,
        why=row.why,
        device_bytes=row.device_bytes,
        host_bytes=row.host_bytes,
        leases=row.leases,
        num_waiting=row.num_waiting,
        loaded_percent=None if row.loaded is None else int(100 * row.loaded),
        is_pinned=row.is_pinned,
        idle_s=row.idle_s,
    )
