"""What is where and why, as a message."""

from loraplex.adapters.residency import Residency
from loraplex.adapters.residency_status import AdapterStatus
from loraplex.adapters.spec import AdapterKey
from loraplex.engine.residency_protocol import AdapterRow, Pin, ResidencyReport, TierTotals, Why

_NEAREST = ("device", "loading", "host", "store")


def report_of(
    residency: Residency, now: float, query_id: int, only: Pin | None = None
) -> ResidencyReport:
    """`now` is of the residency's clock, in seconds; `only` as `ResidencyQuery` says."""
    key = None if only is None else AdapterKey(only.tenant, only.adapter)
    rows = [_row(status, now) for status in residency.status(key)]
    rows.sort(key=lambda row: (_NEAREST.index(row.tier), _idle_s(row), row.tenant, row.adapter))
    granted, host = residency.granted, residency.host
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
        adapters=tuple(rows),
        pins_version=granted.reservations.version,
        refused_pins=tuple(Pin(*key) for key in granted.refused_pins),
        refused_floors=granted.refused_floors,
        refused_host_floors=host.granted.refused_floors,
    )


def _idle_s(row: AdapterRow) -> float:
    return float("inf") if row.idle_s is None else row.idle_s


def _row(status: AdapterStatus, now: float) -> AdapterRow:
    loaded = None
    if status.tier == "loading":
        loaded = status.num_layers / status.of_layers if status.of_layers else 0.0
    return AdapterRow(
        tenant=status.key.tenant,
        adapter=status.key.digest,
        tier=status.tier,
        why=_why(status),
        device_bytes=status.device_bytes,
        host_bytes=status.host_bytes,
        leases=status.leases,
        num_waiting=status.num_waiting,
        loaded=loaded,
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
