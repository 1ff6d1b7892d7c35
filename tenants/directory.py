"""The tenants of the platform."""

from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants import audit
from loraplex.tenants.audit import Act
from loraplex.tenants.dialects import insert_unless_there
from loraplex.tenants.errors import TenantExists, TenantNotFound, ValueRefused
from loraplex.tenants.ids import Entropy, check_slug, new_id
from loraplex.tenants.limits import AdapterLimits, TenantLimits
from loraplex.tenants.tables import Tenant

MAX_LIMIT = 2_000_000_000
MAX_BYTES = 2**50
NO_LIMITS_OF_ITS_OWN = TenantLimits()
NO_ADAPTER_LIMITS = AdapterLimits()
MAX_WEIGHT = 1_000_000.0


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """A tenant as it stands in the database."""

    id: str
    name: str
    status: str
    """`active` or `suspended`."""
    weight: float
    limits: TenantLimits
    created_at: datetime
    adapters: AdapterLimits = NO_ADAPTER_LIMITS


@dataclass(frozen=True, slots=True)
class TenantChange:
    """What is to change of a tenant; None leaves it as it is."""

    weight: float | None = None
    limits: TenantLimits | None = None
    adapters: AdapterLimits | None = None


async def create(
    session: AsyncSession,
    name: str,
    now: datetime,
    entropy: Entropy,
    weight: float = 1.0,
    limits: TenantLimits = NO_LIMITS_OF_ITS_OWN,
    adapters: AdapterLimits = NO_ADAPTER_LIMITS,
) -> TenantRecord:
    """Add a tenant.

    Raises:
        NameInvalid: the name is not a slug.
        TenantExists: the name is taken.
        ValueRefused: weight or a limit is out of range.
    """
    check_slug(name, "The tenant's name")
    _check_ranges(weight, limits, adapters)
    insert = insert_unless_there(
        session,
        Tenant,
        "name",
        id=new_id("tnt", now, entropy),
        name=name,
        status="active",
        weight=weight,
        created_at=now,
        **asdict(limits),
        **asdict(adapters),
    )
    tenant = await session.scalar(insert.returning(Tenant))
    if tenant is None:
        raise TenantExists(f"A tenant named {name} exists already.")
    return _record(tenant)


async def get_by_name(session: AsyncSession, name: str) -> TenantRecord:
    """Return the tenant of this name.

    Raises:
        TenantNotFound: there is none.
    """
    return _record(await _get(session, Tenant.name == name, name))


async def get(session: AsyncSession, tenant_id: str) -> TenantRecord:
    """Return the tenant of this id.

    Raises:
        TenantNotFound: there is none.
    """
    return _record(await _get(session, Tenant.id == tenant_id, tenant_id))


async def list_tenants(session: AsyncSession) -> list[TenantRecord]:
    """Return all tenants by name."""
    return [_record(row) for row in await session.scalars(select(Tenant).order_by(Tenant.name))]


async def list_page(
    session: AsyncSession, limit: int, after_id: str | None = None
) -> list[TenantRecord]:
    """Return the first `limit` tenants that were made after one of this id, oldest first.

    Raises:
        ValueRefused: no tenant has the id `after_id`.
    """
    if after_id is not None and await session.get(Tenant, after_id) is None:
        raise ValueRefused(f"after: no tenant has the id {after_id[:80]!r}.", "after")
    query = select(Tenant).where(Tenant.id > (after_id or "")).order_by(Tenant.id).limit(limit)
    return [_record(row) for row in await session.scalars(query)]


async def change(
    session: AsyncSession, act: Act, tenant_id: str, wanted: TenantChange
) -> TenantRecord:
    """Give a tenant what is wanted, for requests from now on; tells it to the audit log.

    Raises:
        TenantNotFound: there is none.
        ValueRefused: weight or a limit is out of range.
    """
    tenant = await _get(session, Tenant.id == tenant_id, tenant_id, locked=True)
    before = _record(tenant)
    weight = before.weight if wanted.weight is None else wanted.weight
    limits = before.limits if wanted.limits is None else wanted.limits
    adapters = before.adapters if wanted.adapters is None else wanted.adapters
    _check_ranges(weight, limits, adapters)
    named = {"weight": weight, **asdict(limits), **asdict(adapters)}
    changed = {name: value for name, value in named.items() if value != getattr(tenant, name)}
    if changed:
        detail = {name: {"from": getattr(tenant, name), "to": to} for name, to in changed.items()}
        await audit.append(session, act, tenant_id, "tenant.limits", tenant.name, detail)
    for name, value in changed.items():
        setattr(tenant, name, value)
    await session.flush()
    return _record(tenant)


async def suspend(session: AsyncSession, name: str) -> TenantRecord:
    """Refuse the keys of this tenant until it is resumed; no effect if it is suspended.

    Raises:
        TenantNotFound: there is none.
    """
    return await _set_status(session, name, "suspended")


async def resume(session: AsyncSession, name: str) -> TenantRecord:
    """Accept the keys of this tenant again; no effect if it is active.

    Raises:
        TenantNotFound: there is none.
    """
    return await _set_status(session, name, "active")


async def _set_status(session: AsyncSession, name: str, status: str) -> TenantRecord:
    tenant = await _get(session, Tenant.name == name, name)
    tenant.status = status
    await session.flush()
    return _record(tenant)


async def _get(
    session: AsyncSession, condition: ColumnElement[bool], asked: str, *, locked: bool = False
) -> Tenant:
    query = select(Tenant).where(condition)
    if locked:
        query = query.with_for_update(key_share=True)
    tenant = (await session.scalars(query)).one_or_none()
    if tenant is None:
        raise TenantNotFound(f"There is no tenant {asked[:60]!r}.")
    return tenant


def _check_ranges(weight: float, limits: TenantLimits, adapters: AdapterLimits) -> None:
    if not 0 < weight <= MAX_WEIGHT:
        raise ValueRefused(f"weight must be above 0 and at most 1,000,000, not {weight}.", "weight")
    for name, value in (asdict(limits) | asdict(adapters)).items():
        most = MAX_BYTES if name.endswith("_bytes") else MAX_LIMIT
        if value is not None and not 1 <= value <= most:
            raise ValueRefused(f"{name} must be 1 to {most:,}, not {value}.", name)
    floor, cap = adapters.adapter_floor_bytes, adapters.adapter_cap_bytes
    if floor is not None and cap is not None and floor > cap:
        raise ValueRefused(
            f"adapter_floor_bytes is {floor}, more than adapter_cap_bytes, {cap}; "
            "lower it or raise the cap.",
            "adapter_floor_bytes",
        )


def own_limits(row: Tenant) -> TenantLimits:
    """Return what the row of a tenant says of its limits."""
    return TenantLimits(
        row.requests_per_minute, row.tokens_per_minute, row.concurrency, row.ttft_deadline_ms
    )


def adapter_limits(row: Tenant) -> AdapterLimits:
    """Return what the row of a tenant says of its adapters."""
    return AdapterLimits(
        adapter_storage_bytes=row.adapter_storage_bytes,
        adapter_max_rank=row.adapter_max_rank,
        adapter_max_modules=row.adapter_max_modules,
        adapter_floor_bytes=row.adapter_floor_bytes,
        adapter_cap_bytes=row.adapter_cap_bytes,
        adapter_pin_bytes=row.adapter_pin_bytes,
    )


def _record(row: Tenant) -> TenantRecord:
    return TenantRecord(
        id=row.id,
        name=row.name,
        status=row.status,
        weight=row.weight,
        limits=own_limits(row),
        created_at=row.created_at,
        adapters=adapter_limits(row),
    )
