"""What is where and why, as a message."""

from collections.abc import Sequence

from msgspec import structs

from loraplex.adapters.last_evictions import Evicted
from loraplex.adapters.residency import Residency
from loraplex.adapters.residency_status import AdapterStatus
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.residency_protocol import (
    AdapterRow,
    ColdStatus,
    EvictedRow,
    Pin,
    PrefetchTotals,
    ResidencyReport,
    SinceStart,
    TierQuery,
    TierReport,
    TierTotals,
    Why,
)

_NEAREST = ("device", "loading", "host", "store")


def report_of(residency: Residency, cold: ColdStatus, now: float, query_id: int) -> ResidencyReport:
    """`now` is of the residency's clock, in seconds. What is in flight is put into `cold`."""
    statuses = list(residency.status())
    rows = [_row(status, now) for status in statuses]
    rows.sort(key=lambda row: (_NEAREST.index(row.tier), _idle_s(row), row.tenant, row.adapter))
    granted, host = residency.granted, residency.host
    link = structs.replace(cold.link, in_flight_bytes=_in_flight_bytes(statuses))
    return ResidencyReport(
        query_id=query_id,
        device=TierTotals(
            capacity_bytes=residency.capacity_bytes,
            held_bytes=residency.held_bytes,
            num_adapters=residency.num_adapters,
        ),
        host=TierTotals(
            capacity_bytes=host.capacity_bytes,
            held_bytes=host.held_bytes,
            num_adapters=len(host.keys),
        ),
        since_start=_since_start(residency),
        cold=structs.replace(cold, link=link),
        last_evictions=tuple(
            _evicted(evicted, now) for evicted in residency.last_evictions.newest_first()
        ),
        adapters=tuple(rows),
        pins_version=granted.reservations.version,
        refused_pins=tuple(Pin(*key) for key in granted.refused_pins),
        refused_floors=granted.refused_floors,
        refused_host_floors=host.granted.refused_floors,
    )


def tier_of(residency: Residency, query: TierQuery) -> TierReport:
    """Where one adapter is, and nothing of others."""
    (status,) = residency.status(AdapterKey(query.tenant, query.adapter))
    return TierReport(query.query_id, status.tier)


def _since_start(residency: Residency) -> SinceStart:
    counts, prefetched = residency.counts, residency.prefetched
    of_device = {cause: num for (tier, cause), num in counts.evictions.items() if tier == "device"}
    return SinceStart(
        routes=dict(counts.routes),
        loads={
            "store": counts.num_loads - counts.num_host_loads,
            "host": counts.num_host_loads,
        },
        prefetches=PrefetchTotals(
            num_started=prefetched.num_started,
            num_claimed=prefetched.num_claimed,
            num_wasted=prefetched.num_wasted,
            wasted_bytes=prefetched.wasted_bytes,
        ),
        evictions={"device": of_device, "host": dict(residency.host.evictions)},
    )


def _in_flight_bytes(statuses: Sequence[AdapterStatus]) -> int:
    loading = (status for status in statuses if status.tier == "loading")
    return sum(round(status.device_bytes * (1 - _loaded(status))) for status in loading)


def _loaded(status: AdapterStatus) -> float:
    return status.num_layers / status.of_layers if status.of_layers else 0.0


def _evicted(evicted: Evicted, now: float) -> EvictedRow:
    return EvictedRow(
        tenant=evicted.key.tenant,
        adapter=evicted.key.digest,
        tier=evicted.tier,
        cause=evicted.cause,
        ago_s=round(max(0.0, now - evicted.at_s), 3),
    )


def _idle_s(row: AdapterRow) -> float:
    return float("inf") if row.idle_s is None else row.idle_s


def _row(status: AdapterStatus, now: float) -> AdapterRow:
    return AdapterRow(
        tenant=status.key.tenant,
        adapter=status.key.digest,
        tier=status.tier,
        why=_why(status),
        device_bytes=status.device_bytes,
        host_bytes=status.host_bytes,
        leases=status.leases,
        num_waiting=status.num_waiting,
        loaded=_loaded(status) if status.tier == "loading" else None,
        is_pinned=status.is_pinned,
        idle_s=None if status.used_s is None else round(max(0.0, now - status.used_s), 3),
    )


def _why(status: AdapterStatus) -> Why:
    if status.leases and status.tier == "device":
        return "used"
    if status.num_waiting or status.leases:
        return "awaited"
    if status.is_pinned:
        return "pinned"
    if status.is_protected:
        return "floor"
    return "prefetched" if status.is_unclaimed else "kept"
