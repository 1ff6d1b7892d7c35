"""Limits set, removed and listed, by whoever may: checked, and told to the audit log."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import cast, get_args

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants import audit, budgets
from loraplex.tenants.audit import Act
from loraplex.tenants.errors import LimitNotFound, SelfWidening, ValueRefused
from loraplex.tenants.key_scopes import Grantor, of_platform
from loraplex.tenants.limit_parents import LimitOwner, ceilings, check_below
from loraplex.tenants.limit_policies import find, find_or_add
from loraplex.tenants.limits import Limits
from loraplex.tenants.quota_tables import LimitPolicy
from loraplex.tenants.scoped_limits import KINDS, Dimension, Mode, OnStoreLoss, Scope
from loraplex.tenants.tables import Tenant

MAX_VALUE = 2_000_000_000
MAX_BUDGET = 2**53 - 1
"""The largest whole number that every part counts exactly."""


@dataclass(frozen=True, slots=True)
class NewLimit:
    """What is said of a limit that is to hold."""

    value: int
    """Per minute, at a time or per month, in the dimension's unit."""
    burst: int | None = None
    """Of a limit per minute, what may be used at once; None is a minute's worth."""
    mode: Mode = "enforce"
    on_store_loss: OnStoreLoss | None = None
    """None takes the dimension's own."""


@dataclass(frozen=True, slots=True)
class StoredLimit:
    """A limit as it stands in the database."""

    id: str
    scope: Scope
    scope_id: str
    dimension: Dimension
    limit: NewLimit
    updated_at: datetime


def dimension_of(text: str) -> Dimension:
    """Return the dimension of this name.

    Raises:
        ValueRefused: there is none.
    """
    if text not in KINDS:
        raise ValueRefused(f"dimension: {text[:40]!r} is none of {', '.join(KINDS)}.", "dimension")
    return cast("Dimension", text)


async def put(
    session: AsyncSession,
    grantor: Grantor,
    owner: LimitOwner,
    dimension: Dimension,
    wanted: NewLimit,
    defaults: Limits,
) -> StoredLimit:
    """Set a limit, for requests from now on. `defaults` are the platform's, of tenants.

    Whether the owner is there is for the caller to know.

    Raises:
        ValueRefused: a value is out of its range.
        ExceedsParent: it is more than what stands above it has.
        SelfWidening: a key would set its own limit.
    """
    _check(dimension, wanted)
    _check_not_own(grantor, owner)
    await _wait_for_admissions(session, owner.tenant_id)
    burst = wanted.value if wanted.burst is None else wanted.burst
    above = await ceilings(session, owner, dimension, defaults)
    check_below(dimension, wanted.value, burst, above)
    return await _store(session, grantor, owner, dimension, wanted)


async def put_of_tenant(
    session: AsyncSession, act: Act, tenant_id: str, dimension: Dimension, value: int | None
) -> None:
    """Set one of the tenant's own limits as its record shows them, with nothing said of burst and
    mode; None takes it away, if there is one.

    Raises:
        ValueRefused: the value is out of its range.
    """
    owner, grantor = LimitOwner(tenant_id, "tenant", tenant_id), of_platform(act)
    if value is not None:
        wanted = NewLimit(value)
        _check(dimension, wanted)
        await _store(session, grantor, owner, dimension, wanted)
    elif await find(session, tenant_id, "tenant", tenant_id, dimension) is not None:
        await remove(session, grantor, owner, dimension)


async def _store(
    session: AsyncSession,
    grantor: Grantor,
    owner: LimitOwner,
    dimension: Dimension,
    wanted: NewLimit,
) -> StoredLimit:
    named = (owner.tenant_id, owner.scope, owner.scope_id, dimension)
    row, is_new = await find_or_add(session, *named, wanted.value, grantor.act.at)
    before = None if is_new else asdict(_limit_of(row))
    if is_new:
        await budgets.void_copies(session, *named)
    row.value, row.burst = wanted.value, wanted.burst
    row.mode, row.on_store_loss = wanted.mode, wanted.on_store_loss
    row.updated_at = grantor.act.at
    await session.flush()
    if before != asdict(wanted):
        detail = {"dimension": dimension, "from": before, "to": asdict(wanted)}
        await _tell(session, grantor, owner, "limit.set", detail)
    return _record(row)


async def remove(
    session: AsyncSession, grantor: Grantor, owner: LimitOwner, dimension: Dimension
) -> None:
    """Take a limit away; what stands above it holds.

    Raises:
        LimitNotFound: there is none.
        SelfWidening: a key would remove its own limit.
    """
    _check_not_own(grantor, owner)
    row = await find(session, owner.tenant_id, owner.scope, owner.scope_id, dimension)
    if row is None:
        raise LimitNotFound(f"The {owner.scope} has no limit of {dimension}.")
    detail = {"dimension": dimension, "from": asdict(_limit_of(row)), "to": None}
    await session.execute(delete(LimitPolicy).where(LimitPolicy.id == row.id))
    await _tell(session, grantor, owner, "limit.remove", detail)


async def list_limits(
    session: AsyncSession, tenant_id: str, owner: LimitOwner | None = None
) -> list[StoredLimit]:
    """Return the limits of one owner, or all of the tenant's, by scope, owner and dimension."""
    query = select(LimitPolicy).where(LimitPolicy.tenant_id == tenant_id)
    if owner is not None:
        query = query.where(
            LimitPolicy.scope == owner.scope, LimitPolicy.scope_id == owner.scope_id
        )
    rows = await session.scalars(query)
    order = {scope: i for i, scope in enumerate(get_args(Scope))}
    found = [_record(row) for row in rows]
    dimensions = list(KINDS)
    found.sort(key=lambda s: (order[s.scope], s.scope_id, dimensions.index(s.dimension)))
    return found


def _check(dimension: Dimension, wanted: NewLimit) -> None:
    kind = KINDS[dimension]
    least, most = (0, MAX_BUDGET) if kind == "budget" else (1, MAX_VALUE)
    if not least <= wanted.value <= most:
        raise ValueRefused(
            f"value: {dimension} must be {least} to {most:,}, not {wanted.value}.", "value"
        )
    if wanted.burst is not None and kind != "rate":
        raise ValueRefused(
            f"burst: {dimension} has none, only limits per minute do; leave it out.", "burst"
        )
    if wanted.burst is not None and not 1 <= wanted.burst <= MAX_VALUE:
        raise ValueRefused(f"burst must be 1 to {MAX_VALUE:,}, not {wanted.burst}.", "burst")
    for field, known in (("mode", get_args(Mode)), ("on_store_loss", get_args(OnStoreLoss))):
        value = getattr(wanted, field)
        if value is not None and value not in known:
            raise ValueRefused(f"{field}: {value[:40]!r} is none of {', '.join(known)}.", field)


def _check_not_own(grantor: Grantor, owner: LimitOwner) -> None:
    if owner.scope == "key" and owner.scope_id == grantor.key_id:
        raise SelfWidening("A key cannot change its own limits; another key or a person can.")


async def _wait_for_admissions(session: AsyncSession, tenant_id: str) -> None:
    """Wait for intents that are being written (`intents.open_all`), and let others wait: they do
    not name a budget that comes into being here, and must stand before it is reckoned."""
    query = select(Tenant.id).where(Tenant.id == tenant_id)
    await session.execute(query.with_for_update(key_share=True))


async def _tell(
    session: AsyncSession,
    grantor: Grantor,
    owner: LimitOwner,
    action: str,
    detail: Mapping[str, object],
) -> None:
    subject = f"{owner.scope}/{owner.scope_id}"
    await audit.append(session, grantor.act, owner.tenant_id, action, subject, detail)


def _limit_of(row: LimitPolicy) -> NewLimit:
    return NewLimit(
        row.value,
        row.burst,
        cast("Mode", row.mode),
        cast("OnStoreLoss | None", row.on_store_loss),
    )


def _record(row: LimitPolicy) -> StoredLimit:
    return StoredLimit(
        id=row.id,
        scope=cast("Scope", row.scope),
        scope_id=row.scope_id,
        dimension=cast("Dimension", row.dimension),
        limit=_limit_of(row),
        updated_at=row.updated_at,
    )
