"""Messages about adapters in memory: what is promised to whom, and what is where. No torch."""

from typing import Literal

import msgspec

from loraplex.adapters.residency_counts import Cause, Route, TierName

Tier = Literal["store", "host", "loading", "device"]
"""The nearest place that has all of an adapter; `loading`: it is on its way to the device."""
Why = Literal["used", "awaited", "pinned", "floor", "prefetched", "kept"]
"""Why an adapter is where it is, the strongest reason: requests run on it; requests wait for it; it
is pinned; its tenant's floor protects it; it was prefetched, and no request has needed it yet;
nothing else has needed the memory."""
Source = Literal["store", "host"]
"""Where a load comes from."""


class Pin(msgspec.Struct, frozen=True, array_like=True):
    """An adapter that is to be loaded and kept."""

    tenant: str
    adapter: str
    """Digest."""


class Pins(msgspec.Struct, frozen=True, tag="pins", kw_only=True):
    """All pins, floors and caps, in bytes of the device's memory for adapters. It replaces what was
    sent before, unless that was newer. Sent to each worker that connects, and when it changes."""

    version: int
    """Grows with each reading of the database; gateways' clocks make it, in µs since the epoch."""
    pinned: tuple[Pin, ...] = ()
    """The most wanted first."""
    floors: dict[str, int] = {}
    """By tenant, what others cannot push its adapters out of."""
    caps: dict[str, int] = {}
    """By tenant, the most that its adapters may hold."""
    host_floors: dict[str, int] = {}
    host_caps: dict[str, int] = {}
    """The same of the host's memory."""


class Warm(msgspec.Struct, frozen=True, tag="warm"):
    """A tenant will use an adapter soon: let it be brought to the device before, as far as nobody
    needs more what that takes. Nothing is promised and nothing answered. Said again by whoever, the
    later end holds."""

    tenant: str
    adapter: str
    """Digest."""
    ttl_s: float
    """For how long it is expected, from when the worker takes the message: clocks differ."""


class ResidencyQuery(msgspec.Struct, frozen=True, tag="residency_query"):
    """Ask which adapters are where. Answered by `ResidencyReport` after the step in progress."""

    query_id: int


class TierQuery(msgspec.Struct, frozen=True, tag="tier_query"):
    """Ask where one adapter is. Answered by `TierReport` after the step in progress."""

    query_id: int
    tenant: str
    adapter: str
    """Digest."""


class TierReport(msgspec.Struct, frozen=True, tag="tier_report"):
    """Answer to `TierQuery`."""

    query_id: int
    tier: Tier


class TierTotals(msgspec.Struct, frozen=True, kw_only=True):
    """One memory."""

    capacity_bytes: int
    held_bytes: int
    num_adapters: int


class AdapterRow(msgspec.Struct, frozen=True, kw_only=True):
    """One adapter that is in memory, or that requests wait for."""

    tenant: str
    adapter: str
    """Digest."""
    tier: Tier
    why: Why
    device_bytes: int
    host_bytes: int
    leases: int
    """Of requests that run on it, or have begun to wait for it."""
    num_waiting: int
    """Requests that wait and need it."""
    loaded: float | None
    """Part of its layers that are on the device; None unless it is loading."""
    is_pinned: bool
    idle_s: float | None
    """Since a request used it last; None if none did since it came to the device."""


class PrefetchTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What became of prefetches; what is neither claimed nor wasted is still there."""

    num_started: int = 0
    num_claimed: int = 0
    num_wasted: int = 0
    wasted_bytes: int = 0


class SinceStart(msgspec.Struct, frozen=True, kw_only=True):
    """What has happened since the worker's start; what is missing has not happened."""

    routes: dict[Route, int] = {}
    """Requests that began to run on an adapter, by how they came to."""
    loads: dict[Source, int] = {}
    """Loads that were started, prefetches too."""
    prefetches: PrefetchTotals = PrefetchTotals()
    evictions: dict[TierName, dict[Cause, int]] = {}


class LinkStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The way from the host to the device, over which adapters are copied."""

    limit_bytes_per_s: float | None = None
    """What it is throttled to; None if it is not."""
    measured_bytes_per_s: float | None = None
    """Of late; None before the first copy."""
    in_flight_bytes: int = 0
    """Of adapters that are on their way, what has not come."""


class ColdStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How requests fare now whose adapters are on their way."""

    link: LinkStatus = LinkStatus()
    num_passes: int = 0
    """Requests that are computed meanwhile."""
    num_assistants: int = 0
    """Processes of the host that could compute adapters' parts."""


class EvictedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One adapter that lost its memory in one tier."""

    tenant: str
    adapter: str
    """Digest."""
    tier: TierName
    cause: Cause
    ago_s: float


class ResidencyReport(msgspec.Struct, frozen=True, tag="residency_report", kw_only=True):
    """Answer to `ResidencyQuery`."""

    query_id: int
    device: TierTotals
    host: TierTotals
    since_start: SinceStart
    cold: ColdStatus
    last_evictions: tuple[EvictedRow, ...]
    """The newest first, a bounded number of them."""
    adapters: tuple[AdapterRow, ...]
    """The nearest tier first, then the ones used last."""
    pins_version: int
    """Of the `Pins` that hold."""
    refused_pins: tuple[Pin, ...]
    """Pins that do not hold: they exceed their tenant's cap, or what may be reserved."""
    refused_floors: tuple[str, ...]
    """Tenants whose floors do not hold, since they exceed what may be reserved."""
    refused_host_floors: tuple[str, ...] = ()
    """The same of the host's memory."""
