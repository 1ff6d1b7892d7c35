"""The worker's memory for adapters: what is where and why, how requests came to it, what went."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, get_args

from fastapi import APIRouter, Depends, Request, Response

from loraplex.adapters.registry import pins
from loraplex.adapters.registry.names import AdapterName
from loraplex.adapters.residency_counts import Route
from loraplex.engine.residency_protocol import Why
from loraplex.platform.console.access import OwnForm, Session
from loraplex.platform.console.errors import FormRefused
from loraplex.platform.console.pages import lead_to, render
from loraplex.platform.console.permissions import Inside, OnPlatform, Place
from loraplex.platform.console.route import ConsoleRoute
from loraplex.platform.deps import ServicesOf
from loraplex.platform.residency_view import (
    EvictedView,
    ResidencyView,
    ResidentView,
    TierView,
    residency_view,
)

router = APIRouter(route_class=ConsoleRoute)

HOME = "/console/memory"
EVERY_S = 5
NUM_ROWS = 200
NUM_EVICTIONS = 10
WIDTH = 1000


@dataclass(frozen=True, slots=True)
class Part:
    """What of a memory is held for one reason, as a piece of its bar."""

    why: Why
    num_bytes: int
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class MemoryBar:
    """One memory, from 0 to `WIDTH`."""

    name: str
    tier: TierView
    parts: tuple[Part, ...]

    @property
    def free_bytes(self) -> int:
        """That nobody holds."""
        return max(0, self.tier.capacity_bytes - self.tier.held_bytes)


@dataclass(frozen=True, slots=True)
class Row:
    """One adapter of the table."""

    adapter: ResidentView
    version: tuple[str, str, str] | None
    """Tenant, adapter and number of the version, by which it is pinned; None if it has no name."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What the page shows while a worker answers."""

    seen: ResidencyView
    bars: tuple[MemoryBar, ...]
    rows: tuple[Row, ...]
    """The first `NUM_ROWS` of its adapters."""
    routes: tuple[tuple[Route, int, float], ...]
    """Each with its requests and its share of all, 0 to 1."""
    gone: tuple[EvictedView, ...]
    """The last ones, `NUM_EVICTIONS` at most."""


@router.get("/memory")
async def show_memory(
    _session: Annotated[Session, Depends(OnPlatform("platform.read"))],
    request: Request,
    services: ServicesOf,
) -> Response:
    """What is in memory now; without a worker, that there is none."""
    report = await services.resources.engine.residency()
    shown = None
    if report is not None:
        async with services.resources.database.reader() as reader:
            shown = _shown(await residency_view(reader, report))
    return render(request, "memory.html", every_s=EVERY_S, shown=shown)


@router.post("/tenants/{name}/adapters/pin")
async def pin_version(
    place: Annotated[Place, Depends(Inside("adapters.write"))],
    request: Request,
    form: OwnForm,
    services: ServicesOf,
) -> Response:
    """Keep a version in memory, or let it be pushed out again."""
    name, number = form.text("adapter"), form.text("version")
    if not re.fullmatch("[1-9][0-9]{0,8}", number):
        raise FormRefused("The version must be a number.")
    adapter = AdapterName(place.tenant.id, name)
    act, subject = place.session.act(services.now()), f"{place.tenant.name}/{name}@{number}"
    async with services.resources.database.session() as session:
        if form.text("pinned") == "true":
            await pins.pin(session, act, adapter, int(number))
            done = f"{subject} is pinned: it is loaded when there is room, and stays."
        else:
            await pins.unpin(session, act, adapter, int(number))
            done = f"{subject} is not pinned any more."
    return lead_to(request, HOME, done)


def _shown(view: ResidencyView) -> Shown:
    routes = view.since_start.routes
    num_routed = sum(routes.values())
    return Shown(
        seen=view,
        bars=(
            _bar("device", view.tiers.device, [(a.why, a.device_bytes) for a in view.adapters]),
            _bar("host", view.tiers.host, [(a.why, a.host_bytes) for a in view.adapters]),
        ),
        rows=tuple(Row(adapter, _version(adapter.model)) for adapter in view.adapters[:NUM_ROWS]),
        routes=tuple((route, num, num / (num_routed or 1)) for route, num in routes.items()),
        gone=tuple(view.last_evictions[:NUM_EVICTIONS]),
    )


def _bar(name: str, tier: TierView, held: Sequence[tuple[Why, int]]) -> MemoryBar:
    sums = dict.fromkeys(get_args(Why), 0)
    for why, num_bytes in held:
        sums[why] += num_bytes
    scale = WIDTH / max(tier.capacity_bytes, sum(sums.values()), 1)
    parts, x = [], 0.0
    for why, num_bytes in sums.items():
        if num_bytes:
            parts.append(Part(why, num_bytes, x, num_bytes * scale))
            x += num_bytes * scale
    return MemoryBar(name, tier, tuple(parts))


def _version(model: str | None) -> tuple[str, str, str] | None:
    """`acme`, `support` and `3` of `acme/support@3`."""
    if model is None:
        return None
    tenant, _, rest = model.partition("/")
    adapter, _, number = rest.rpartition("@")
    return tenant, adapter, number
