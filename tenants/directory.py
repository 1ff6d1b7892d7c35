"""The tenants of the platform."""

from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.dialects import insert_unless_there
from loraplex.tenants.errors import TenantExists, TenantNotFound, ValueRefused
from loraplex.tenants.ids import Entropy, check_slug, new_id
from loraplex.tenants.limits import TenantLimits
from loraplex.tenants.tables import Tenant

MAX_LIMIT = 2_000_000_000
NO_LIMITS_OF_ITS_OWN = TenantLimits()
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


async def create(
    session: AsyncSession,
    name: str,
    now: datetime,
    entropy: Entropy,
    weight: float = 1.0,
    limits: TenantLimits = NO_LIMITS_OF_ITS_OWN,
) -> TenantRecord:
    """Add a tenant.

    Raises:
        NameInvalid: the name is not a slug.
        TenantExists: the name is taken.
        ValueRefused: weight or a limit is out of range.
    """
    check_slug(name, "The tenant's name")
    _check_ranges(weight, limits)
    insert = insert_unless_there(
        session,
        Tenant,
        "name",
        id=new_id("tnt", now, entropy),
        name=name,
        status="active",
        weight=weight,
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
        concurrency=limits.concurrency,
        ttft_deadline_ms=limits.ttft_deadline_ms,
        created_at=now,
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
    session: AsyncSession, tenant_id: str, weight: float, limits: TenantLimits
) -> TenantRecord:
    """Give a tenant this weight and these limits, for requests from now on.

    Raises:
        TenantNotFound: there is none.
        ValueRefused: weight or a limit is out of range.
    """
    _check_ranges(weight, limits)
    tenant = await _get(session, Tenant.id == tenant_id, tenant_id)
    tenant.weight = weight
    tenant.requests_per_minute = limits.requests_per_minute
    tenant.tokens_per_minute = limits.tokens_per_minute
    tenant.concurrency = limits.concurrency
    tenant.ttft_deadline_ms = limits.ttft_deadline_ms
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


async def _get(session: AsyncSession, condition: ColumnElement[bool], asked: str) -> Tenant:
    tenant = (await session.scalars(select(Tenant).where(condition))).one_or_none()
    if tenant is None:
        raise TenantNotFound(f"There is no tenant {asked[:60]!r}.")
    return tenant


def _check_ranges(weight: float, limits: TenantLimits) -> None:
    if not 0 < weight <= MAX_WEIGHT:
        raise ValueRefused(f"weight must be above 0 and at most 1,000,000, not {weight}.", "weight")
    for limit in fields(limits):
        field, value = limit.name, getattr(limits, limit.name)
        if value is not None and not 1 <= value <= MAX_LIMIT:
            raise ValueRefused(f"{field} must be 1 to 2,000,000,000, not {value}.", field)


def own_limits(row: Tenant) -> TenantLimits:
    """Return what the row of a tenant says of its limits."""
    return TenantLimits(
        row.requests_per_minute, row.tokens_per_minute, row.concurrency, row.ttft_deadline_ms
    )


def _record(row: Tenant) -> TenantRecord:
    return TenantRecord(
        id=row.id,
        name=row.name,
        status=row.status,
        weight=row.weight,
        limits=own_limits(row),
        created_at=row.created_at,
    )
