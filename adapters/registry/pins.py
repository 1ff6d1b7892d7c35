"""Versions that a tenant wants to be kept in memory, and what of it is its own."""

from dataclasses import dataclass

from sqlalchemy import func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.registry.errors import PinLimitReached, VersionNotReady
from loraplex.adapters.registry.names import AdapterName
from loraplex.adapters.registry.registry import get_version, lock_adapter
from loraplex.adapters.registry.tables import Adapter, AdapterVersion
from loraplex.tenants import audit
from loraplex.tenants.audit import Act
from loraplex.tenants.directory import adapter_limits
from loraplex.tenants.tables import Tenant

_LIMITS = (
    Tenant.adapter_floor_bytes,
    Tenant.adapter_cap_bytes,
    Tenant.adapter_host_floor_bytes,
    Tenant.adapter_host_cap_bytes,
)


@dataclass(frozen=True, slots=True)
class PinnedVersion:
    """An adapter that is to stay in memory."""

    tenant_id: str
    digest: str
    num_bytes: int
    """Of its tensors as they are stored."""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """What of the memory for adapters is a tenant's own."""

    tenant_id: str
    floor_bytes: int
    cap_bytes: int | None
    """Of the device; None for no cap."""
    host_floor_bytes: int
    host_cap_bytes: int | None
    """Of the host; None for no cap."""


async def pin(session: AsyncSession, act: Act, name: AdapterName, number: int) -> None:
    """Keep a version in memory; no effect if it is pinned.

    Raises:
        ModelNotFound: the tenant has no such version.
        VersionNotReady: it is retired or deleted.
        PinLimitReached: the tenant's pins would take more than `adapter_pin_bytes`.
    """
    # Two pins at once would each find room for itself.
    tenant = await session.get_one(
        Tenant, name.tenant_id, with_for_update={"key_share": True}, populate_existing=True
    )
    locked = await lock_adapter(session, name)
    version = await get_version(session, name, number)
    subject = f"{version.model}@{number}"
    if version.standing.status != "ready":
        raise VersionNotReady(f"The version {subject} is {version.standing.status}.")
    if version.standing.is_pinned:
        return
    used = {each.digest: each.num_bytes for each in await _pinned(session, name.tenant_id)}
    limit, before = adapter_limits(tenant).adapter_pin_bytes or 0, sum(used.values())
    if sum((used | {version.digest: version.num_bytes}).values()) > limit:
        raise PinLimitReached(
            f"The version {subject} has {version.num_bytes} bytes, and {before} of the {limit} "
            "that the tenant may pin (adapter_pin_bytes) are pinned; unpin another, or ask the "
            "operator for more."
        )
    await _set(session, locked.id, number, is_pinned=True)
    await audit.append(session, act, name.tenant_id, "adapter.version.pin", subject)


async def unpin(session: AsyncSession, act: Act, name: AdapterName, number: int) -> None:
    """Let a version be pushed out of memory again; no effect if it may be.

    Raises:
        ModelNotFound: the tenant has no such version.
    """
    locked = await lock_adapter(session, name)
    version = await get_version(session, name, number)
    if version.standing.is_pinned:
        await _set(session, locked.id, number, is_pinned=False)
        subject = f"{version.model}@{number}"
        await audit.append(session, act, name.tenant_id, "adapter.version.unpin", subject)


async def pinned(session: AsyncSession) -> list[PinnedVersion]:
    """Return what all tenants have pinned and can call: by tenant, equal bytes once."""
    return await _pinned(session, None)


async def memory_limits(session: AsyncSession) -> list[MemoryLimits]:
    """Return the floors and caps of the tenants that have any, by tenant."""
    query = select(Tenant).where(or_(*(column.is_not(None) for column in _LIMITS)))
    return [
        MemoryLimits(
            row.id,
            row.adapter_floor_bytes or 0,
            row.adapter_cap_bytes,
            row.adapter_host_floor_bytes or 0,
            row.adapter_host_cap_bytes,
        )
        for row in await session.scalars(query.order_by(Tenant.id))
    ]


async def _pinned(session: AsyncSession, tenant_id: str | None) -> list[PinnedVersion]:
    query = (
        select(Adapter.tenant_id, AdapterVersion.digest, func.max(AdapterVersion.num_bytes))
        .join(AdapterVersion, AdapterVersion.adapter_id == Adapter.id)
        .where(AdapterVersion.is_pinned, AdapterVersion.status == "ready")
        .group_by(Adapter.tenant_id, AdapterVersion.digest)
        .order_by(Adapter.tenant_id, AdapterVersion.digest)
    )
    if tenant_id is not None:
        query = query.where(Adapter.tenant_id == tenant_id)
    return [PinnedVersion(*row) for row in await session.execute(query)]


async def _set(session: AsyncSession, adapter_id: int, number: int, *, is_pinned: bool) -> None:
    query = select(AdapterVersion).where(
        AdapterVersion.adapter_id == adapter_id, AdapterVersion.number == number
    )
    version = (await session.scalars(query)).one()
    version.is_pinned = is_pinned
    await session.flush()
