"""A worker's memory that holds what the console's tenants have published."""

from sqlalchemy import select
from tests.console.platform import ConsolePlatform

from loraplex.adapters.registry.tables import Adapter, AdapterVersion
from loraplex.engine.residency_protocol import (
    AdapterRow,
    ColdStatus,
    EvictedRow,
    LinkStatus,
    Pin,
    PrefetchTotals,
    ResidencyReport,
    SinceStart,
    Tier,
    TierTotals,
    Why,
)

_MIB = 1 << 20
_PLACES: tuple[tuple[Tier, Why], ...] = (
    ("device", "used"),
    ("device", "used"),
    ("device", "pinned"),
    ("device", "floor"),
    ("device", "prefetched"),
    ("device", "kept"),
    ("loading", "awaited"),
    ("host", "kept"),
    ("store", "awaited"),
)


async def fill_memory(platform: ConsolePlatform) -> None:
    """Let the worker say that it holds each adapter's first version, in all ways by turns."""
    async with platform.resources.database.reader() as session:
        query = select(Adapter.tenant_id, AdapterVersion.digest, AdapterVersion.num_bytes)
        query = query.join(AdapterVersion, AdapterVersion.adapter_id == Adapter.id)
        found = (await session.execute(query.where(AdapterVersion.number == 1))).all()
    rows = [
        _row(tenant, digest, num_bytes, index)
        for index, (tenant, digest, num_bytes) in enumerate(found)
    ]
    platform.engine.report = _report(rows)


def _row(tenant: str, digest: str, num_bytes: int, index: int) -> AdapterRow:
    tier, why = _PLACES[index % len(_PLACES)]
    return AdapterRow(
        tenant=tenant,
        adapter=digest,
        tier=tier,
        why=why,
        device_bytes=num_bytes if tier in {"device", "loading"} else 0,
        host_bytes=0 if tier == "store" else num_bytes,
        leases=2 if why == "used" else 0,
        num_waiting=1 if why == "awaited" else 0,
        loaded=0.4 if tier == "loading" else None,
        is_pinned=why == "pinned",
        idle_s=1.5 * index if tier == "device" and why != "prefetched" else None,
    )


def _report(rows: list[AdapterRow]) -> ResidencyReport:
    last = rows[-1]
    return ResidencyReport(
        query_id=0,
        device=_totals([row.device_bytes for row in rows], 128 * _MIB),
        host=_totals([row.host_bytes for row in rows], 256 * _MIB),
        since_start=SinceStart(
            routes={
                "resident": 8410,
                "prefetch": 312,
                "wait": 27,
                "join": 64,
                "layer-wise": 655,
                "assist": 201,
            },
            loads={"store": 240, "host": 1033},
            prefetches=PrefetchTotals(num_started=351, num_claimed=312, num_wasted=30),
            evictions={
                "device": {"load": 1180, "prefetch": 74, "kv": 9, "drop": 1},
                "host": {"load": 96},
            },
        ),
        cold=ColdStatus(
            link=LinkStatus(
                limit_bytes_per_s=512 * _MIB,
                measured_bytes_per_s=498 * _MIB,
                in_flight_bytes=3 * _MIB,
            ),
            num_passes=2,
            num_assistants=4,
        ),
        last_evictions=tuple(
            EvictedRow(
                tenant=row.tenant,
                adapter=row.adapter,
                tier="host" if index == 2 else "device",
                cause="kv" if index == 1 else "load",
                ago_s=2.4 + 7 * index,
            )
            for index, row in enumerate(rows[-5:])
        ),
        adapters=tuple(rows),
        pins_version=1,
        refused_pins=(Pin(last.tenant, last.adapter),),
        refused_floors=(),
    )


def _totals(held: list[int], capacity_bytes: int) -> TierTotals:
    return TierTotals(
        capacity_bytes=capacity_bytes, held_bytes=sum(held), num_adapters=sum(map(bool, held))
    )
