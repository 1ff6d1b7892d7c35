"""What is where in the worker's memory, with the names that people know: for the admin API and
`loraplex adapter top`."""

from typing import Literal, Self

from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.registry.model_names import names_of_adapters, names_of_tenants
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.residency_protocol import (
    AdapterRow,
    Pin,
    ResidencyReport,
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
    refused: RefusedView


async def residency_view(session: AsyncSession, report: ResidencyReport) -> ResidencyView:
    """Put the names to a report."""
    keys = [AdapterKey(row.tenant, row.adapter) for row in report.adapters]
    keys += [AdapterKey(pin.tenant, pin.adapter) for pin in report.refused_pins]
    models = await names_of_adapters(session, keys)
    ids = [*(key.tenant for key in keys), *report.refused_floors]
    ids += report.refused_host_floors
    tenants = await names_of_tenants(session, ids)

    def named(each: AdapterRow | Pin) -> AdapterNameView:
        key = AdapterKey(each.tenant, each.adapter)
        return AdapterNameView(
            tenant=tenants.get(key.tenant, key.tenant), model=models.get(key), digest=key.digest
        )

    return ResidencyView(
        tiers=TiersView(device=TierView.of(report.device), host=TierView.of(report.host)),
        adapters=[_resident(named(row), row) for row in report.adapters],
        refused=RefusedView(
            pins=[named(pin) for pin in report.refused_pins],
            floors=[tenants.get(tenant, tenant) for tenant in report.refused_floors],
            host_floors=[tenants.get(tenant, tenant) for tenant in report.refused_host_floors],
        ),
    )


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
