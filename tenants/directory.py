"""The tenants of the platform."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime

from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants import audit, limit_changes, limit_policies, projects
from loraplex.tenants.audit import Act
from loraplex.tenants.dialects import insert_unless_there
from loraplex.tenants.errors import TenantExists, TenantNotFound, ValueRefused
from loraplex.tenants.ids import Entropy, check_slug, new_id
from loraplex.tenants.limits import AdapterLimits, TenantLimits
from loraplex.tenants.periods import Calendar
from loraplex.tenants.tables import ALL_TIERS, Tenant
from loraplex.tenants.time_zones import zone_named

MAX_LIMIT = 2_000_000_000
MAX_BYTES = 2**50
NO_LIMITS_OF_ITS_OWN = TenantLimits()
NO_ADAPTER_LIMITS = AdapterLimits()
MAX_WEIGHT = 1_000_000.0
MAX_REASON_CHARS = 200
TIERS = tuple(ALL_TIERS.split(","))


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
    service_tiers: tuple[str, ...] = TIERS
    """Those that its requests may ask for."""
    time_zone: str = "UTC"
    """In which its months begin, from the month after it was set."""
    earlier_time_zones: str = ""
    """Zones before that, as `Calendar.parse` takes them."""
    version: int = 1
    """Grows with each change of its share or its tiers."""

    @property
    def calendar(self) -> Calendar:
        """Its months."""
        return Calendar.parse(self.time_zone, self.earlier_time_zones)


@dataclass(frozen=True, slots=True)
class NewTenant:
    """What is said of a tenant that is to be made."""

    name: str
    weight: float = 1.0
    limits: TenantLimits = NO_LIMITS_OF_ITS_OWN
    adapters: AdapterLimits = NO_ADAPTER_LIMITS
    service_tiers: tuple[str, ...] | None = None
    time_zone: str | None = None


@dataclass(frozen=True, slots=True)
class TenantChange:
    """What is to change of a tenant; what is None or not named stays as it is when this is done,
    whoever changed it meanwhile."""

    weight: float | None = None
    limits: Mapping[str, int | None] = field(default_factory=dict)
    """Those fields of TenantLimits that change; None takes the platform's default."""
    adapters: Mapping[str, int | None] = field(default_factory=dict)
    """The same of AdapterLimits."""
    service_tiers: tuple[str, ...] | None = None
    time_zone: str | None = None


async def add(session: AsyncSession, act: Act, wanted: NewTenant, entropy: Entropy) -> TenantRecord:
    """Add a tenant, and tell it to the audit log.

    Raises:
        NameInvalid, TenantExists, ValueRefused: as `create` and `change` do.
    """
    made = await create(
        session, wanted.name, act.at, entropy, wanted.weight, wanted.limits, wanted.adapters
    )
    row = await session.get_one(Tenant, made.id)
    if wanted.service_tiers is not None:
        row.service_tiers = ",".join(_checked_tiers(wanted.service_tiers))
    if wanted.time_zone is not None:
        row.time_zone = zone_named(wanted.time_zone).key
    await session.flush()
    given = asdict(wanted.limits) | asdict(wanted.adapters)
    detail = {"weight": wanted.weight, **{k: v for k, v in given.items() if v is not None}}
    detail |= {"service_tiers": row.service_tiers, "time_zone": row.time_zone}
    await audit.append(session, act, made.id, "tenant.create", made.name, detail)
    return await _record(session, row)


async def create(
    session: AsyncSession,
    name: str,
    now: datetime,
    entropy: Entropy,
    weight: float = 1.0,
    limits: TenantLimits = NO_LIMITS_OF_ITS_OWN,
    adapters: AdapterLimits = NO_ADAPTER_LIMITS,
) -> TenantRecord:
    """Add a tenant; `add` is for people.

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
        ttft_deadline_ms=limits.ttft_deadline_ms,
        **asdict(adapters),
    )
    tenant = await session.scalar(insert.returning(Tenant))
    if tenant is None:
        raise TenantExists(f"A tenant named {name} exists already.")
    await projects.add_default(session, tenant.id, now)
    for dimension in limit_policies.TENANT_DIMENSIONS:
        value = getattr(limits, dimension)
        if value is not None:
            named = (tenant.id, "tenant", tenant.id, dimension)
            await limit_policies.find_or_add(session, *named, value, now)
    return await _record(session, tenant)


async def get_by_name(session: AsyncSession, name: str) -> TenantRecord:
    """Return the tenant of this name.

    Raises:
        TenantNotFound: there is none.
    """
    return await _record(session, await _get(session, Tenant.name == name, name))


async def get(session: AsyncSession, tenant_id: str) -> TenantRecord:
    """Return the tenant of this id.

    Raises:
        TenantNotFound: there is none.
    """
    return await _record(session, await _get(session, Tenant.id == tenant_id, tenant_id))


async def list_tenants(session: AsyncSession) -> list[TenantRecord]:
    """Return all tenants by name."""
    rows = await session.scalars(select(Tenant).order_by(Tenant.name))
    return [await _record(session, row) for row in rows]


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
    return [await _record(session, row) for row in await session.scalars(query)]


async def change(
    session: AsyncSession, act: Act, tenant_id: str, wanted: TenantChange
) -> TenantRecord:
    """Give a tenant what is wanted, for requests from now on, a time zone for months that have not
    begun; tells it to the audit log.

    Raises:
        TenantNotFound: there is none.
        ValueRefused: weight or a limit is out of range.
    """
    tenant = await _get(session, Tenant.id == tenant_id, tenant_id, locked=True)
    before = await _record(session, tenant)
    weight = before.weight if wanted.weight is None else wanted.weight
    limits = replace(before.limits, **wanted.limits)
    adapters = replace(before.adapters, **wanted.adapters)
    _check_ranges(weight, limits, adapters)
    tiers = tenant.service_tiers
    if wanted.service_tiers is not None:
        tiers = ",".join(_checked_tiers(wanted.service_tiers))
    zone = zone_named(tenant.time_zone if wanted.time_zone is None else wanted.time_zone)
    held = {
        "weight": before.weight,
        "service_tiers": tenant.service_tiers,
        "time_zone": tenant.time_zone,
        "ttft_deadline_ms": before.limits.ttft_deadline_ms,
        **asdict(before.adapters),
    }
    named = {
        "weight": weight,
        "service_tiers": tiers,
        "time_zone": zone.key,
        "ttft_deadline_ms": limits.ttft_deadline_ms,
        **asdict(adapters),
    }
    changed = {name: value for name, value in named.items() if value != held[name]}
    if "time_zone" in changed:
        tenant.earlier_time_zones = before.calendar.changed(act.at, zone).earlier_text
    if changed:
        detail = {name: {"from": held[name], "to": to} for name, to in changed.items()}
        await audit.append(session, act, tenant_id, "tenant.limits", tenant.name, detail)
    for name, value in changed.items():
        setattr(tenant, name, value)
    for dimension in limit_policies.TENANT_DIMENSIONS:
        if dimension in wanted.limits:
            limit = wanted.limits[dimension]
            await limit_changes.put_of_tenant(session, act, tenant_id, dimension, limit)
    if changed.keys() & {"weight", "service_tiers"}:
        tenant.version += 1
    await session.flush()
    return await _record(session, tenant)


async def suspend(
    session: AsyncSession, act: Act, tenant_id: str, reason: str = ""
) -> TenantRecord:
    """Refuse the keys of this tenant until it is resumed; no effect if it is suspended.

    Raises:
        TenantNotFound: there is none, or it is being deleted.
        ValueRefused: the reason is too long.
    """
    return await _set_status(session, act, tenant_id, "suspended", reason)


async def resume(session: AsyncSession, act: Act, tenant_id: str, reason: str = "") -> TenantRecord:
    """Accept the keys of this tenant again; no effect if it is active.

    Raises:
        TenantNotFound: there is none, or it is being deleted.
        ValueRefused: the reason is too long.
    """
    return await _set_status(session, act, tenant_id, "active", reason)


async def _set_status(
    session: AsyncSession, act: Act, tenant_id: str, status: str, reason: str
) -> TenantRecord:
    if len(reason) > MAX_REASON_CHARS or "\0" in reason:
        raise ValueRefused(
            f"reason must have at most {MAX_REASON_CHARS} characters, and no U+0000.", "reason"
        )
    tenant = await _get(session, Tenant.id == tenant_id, tenant_id, locked=True)
    if tenant.status not in ("active", "suspended"):
        raise TenantNotFound(f"The tenant {tenant.name} is being deleted.")
    if tenant.status != status:
        tenant.status = status
        await session.flush()
        action = "tenant.suspend" if status == "suspended" else "tenant.resume"
        await audit.append(session, act, tenant.id, action, tenant.name, {"reason": reason})
    return await _record(session, tenant)


async def _get(
    session: AsyncSession, condition: ColumnElement[bool], asked: str, *, locked: bool = False
) -> Tenant:
    query = select(Tenant).where(condition)
    if locked:
        query = query.with_for_update(key_share=True).execution_options(populate_existing=True)
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
    _check_floor("adapter", adapters.adapter_floor_bytes, adapters.adapter_cap_bytes)
    _check_floor("adapter_host", adapters.adapter_host_floor_bytes, adapters.adapter_host_cap_bytes)


def _check_floor(prefix: str, floor: int | None, cap: int | None) -> None:
    if floor is not None and cap is not None and floor > cap:
        raise ValueRefused(
            f"{prefix}_floor_bytes is {floor}, more than {prefix}_cap_bytes, {cap}; "
            "lower it or raise the cap.",
            f"{prefix}_floor_bytes",
        )


def _checked_tiers(tiers: Sequence[str]) -> tuple[str, ...]:
    unknown = [tier for tier in tiers if tier not in TIERS]
    if unknown or not tiers:
        told = f"there is no {unknown[0][:40]!r}" if unknown else "none is named"
        raise ValueRefused(
            f"service_tiers: {told}; name some of {', '.join(TIERS)}.", "service_tiers"
        )
    return tuple(tier for tier in TIERS if tier in tiers)


async def own_limits(session: AsyncSession, row: Tenant) -> TenantLimits:
    """Return what is stored of a tenant's own limits."""
    values = await limit_policies.tenant_values(session, row.id)
    return TenantLimits(**values, ttft_deadline_ms=row.ttft_deadline_ms)


def adapter_limits(row: Tenant) -> AdapterLimits:
    """Return what the row of a tenant says of its adapters."""
    return AdapterLimits(
        adapter_storage_bytes=row.adapter_storage_bytes,
        adapter_max_rank=row.adapter_max_rank,
        adapter_max_modules=row.adapter_max_modules,
        adapter_floor_bytes=row.adapter_floor_bytes,
        adapter_cap_bytes=row.adapter_cap_bytes,
        adapter_pin_bytes=row.adapter_pin_bytes,
        adapter_host_floor_bytes=row.adapter_host_floor_bytes,
        adapter_host_cap_bytes=row.adapter_host_cap_bytes,
    )


async def _record(session: AsyncSession, row: Tenant) -> TenantRecord:
    return TenantRecord(
        id=row.id,
        name=row.name,
        status=row.status,
        weight=row.weight,
        limits=await own_limits(session, row),
        created_at=row.created_at,
        adapters=adapter_limits(row),
        service_tiers=tuple(row.service_tiers.split(",")),
        time_zone=row.time_zone,
        earlier_time_zones=row.earlier_time_zones,
        version=row.version,
    )
