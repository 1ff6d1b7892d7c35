"""Names that move between the versions of an adapter: `tenant/adapter:prod`.

    absent ── point ──> version v ── point w ──> w, before it v ── roll back ──> v
                          │   ^                                      (nothing before it)
            set a canary  │   │  clear it, or point elsewhere
                          v   │
                v, for some requests c ── promote ──> c, before it v

An alias always means a version that can be called: one that it means is retired or deleted by force
alone, and then the alias goes as well. Each change is atomic and told to the audit log; what is as
asked already changes nothing.
"""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Select, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from loraplex.adapters.registry.errors import (
    AliasMoved,
    NothingToMoveTo,
    TooManyAliases,
    VersionNotReady,
)
from loraplex.adapters.registry.names import AdapterName, not_found
from loraplex.adapters.registry.registry import LockedAdapter, lock_adapter
from loraplex.adapters.registry.tables import Adapter, AdapterAlias, AdapterVersion
from loraplex.tenants import audit
from loraplex.tenants.audit import Act
from loraplex.tenants.errors import ValueRefused
from loraplex.tenants.ids import check_slug
from loraplex.tenants.tables import Tenant

MAX_ALIASES = 100
"""Of one adapter."""


@dataclass(frozen=True, slots=True)
class Canary:
    """The version that some requests of an alias run on."""

    version: int
    percent: int
    """Of requests, 1 to 100."""


@dataclass(frozen=True, slots=True)
class Alias:
    """An alias, and what it means."""

    adapter: str
    """`tenant/adapter`."""
    name: str
    version: int
    previous: int | None
    """The version that a rollback goes to."""
    canary: Canary | None
    updated_at: datetime

    @property
    def model(self) -> str:
        """What a request names: `tenant/adapter:alias`."""
        return f"{self.adapter}:{self.name}"


async def list_aliases(
    session: AsyncSession, tenant_id: str, adapter: str | None = None
) -> list[Alias]:
    """Return the aliases of a tenant, or of one of its adapters, by adapter and name."""
    query = _aliases(tenant_id)
    if adapter is not None:
        query = query.where(Adapter.name == adapter)
    return [_alias(*row) for row in await session.execute(query)]


async def get_alias(session: AsyncSession, name: AdapterName, alias: str) -> Alias:
    """Return one alias.

    Raises:
        ModelNotFound: the tenant has none of this name.
    """
    query = _aliases(name.tenant_id).where(Adapter.name == name.adapter, AdapterAlias.name == alias)
    row = (await session.execute(query)).one_or_none()
    if row is None:
        raise not_found(f"{name.adapter}:{alias}")
    return _alias(*row)


async def point(
    session: AsyncSession,
    act: Act,
    name: AdapterName,
    alias: str,
    version: int,
    expected: int | None = None,
) -> Alias:
    """Let an alias mean a version, made if it is absent; a canary of another version ends.

    `expected` is the version that it must mean now, 0 if it must be absent; None asks for nothing,
    and so does an alias that means `version` already.

    Raises:
        NameInvalid: the alias is not a slug.
        ModelNotFound: the tenant has no such adapter, or that no such version.
        VersionNotReady: the version cannot be called.
        AliasMoved: the alias does not mean what is expected.
        TooManyAliases: it would be one too many.
    """
    check_slug(alias, "The alias")
    locked = await lock_adapter(session, name)
    target = await _ready(session, locked, version)
    row = await _row(session, locked, alias)
    now_means = 0 if row is None else await _number(session, row.version_id)
    if row is not None and row.version_id == target.id:
        return await get_alias(session, name, alias)
    if expected is not None and now_means != expected:
        told = "is absent" if row is None else f"means version {now_means}"
        asked = "absent" if expected == 0 else f"at version {expected}"
        raise AliasMoved(f"The alias {locked.model}:{alias} {told}, and was expected {asked}.")
    if row is None:
        await _check_number(session, locked)
        row = AdapterAlias(
            adapter_id=locked.id, name=alias, version_id=target.id, updated_at=act.at
        )
        session.add(row)
    else:
        _move(row, target.id, row.version_id, act.at)
    detail: dict[str, object] = {"from": now_means or None, "to": version}
    await _tell(session, act, locked, alias, "point", detail)
    return await get_alias(session, name, alias)


async def roll_back(session: AsyncSession, act: Act, name: AdapterName, alias: str) -> Alias:
    """Let an alias mean again what it meant before; a canary ends.

    Raises:
        ModelNotFound: the tenant has no such alias.
        NothingToMoveTo: nothing was before, or it has been rolled back already.
        VersionNotReady: what was before cannot be called any more.
    """
    locked, row = await _locked_alias(session, name, alias)
    if row.previous_version_id is None:
        raise NothingToMoveTo(
            f"The alias {locked.model}:{alias} has no version before the one that it means."
        )
    before = await _number(session, row.previous_version_id)
    left = await _number(session, row.version_id)
    await _ready(session, locked, before)
    _move(row, row.previous_version_id, None, act.at)
    await _tell(session, act, locked, alias, "rollback", {"from": left, "to": before})
    return await get_alias(session, name, alias)


async def set_canary(
    session: AsyncSession, act: Act, name: AdapterName, alias: str, canary: Canary
) -> Alias:
    """Let a part of an alias's requests run on another version.

    Raises:
        ModelNotFound: the tenant has no such alias, or the adapter no such version.
        ValueRefused: the percentage is not 1 to 100, or the version the alias's own.
        VersionNotReady: the version cannot be called.
    """
    if not 1 <= canary.percent <= 100:
        raise ValueRefused(f"percent must be 1 to 100, not {canary.percent}.", "percent")
    locked, row = await _locked_alias(session, name, alias)
    target = await _ready(session, locked, canary.version)
    if target.id == row.version_id:
        raise ValueRefused(
            f"version: {locked.model}:{alias} means version {canary.version} already; a canary is "
            "another version.",
            "version",
        )
    if (row.canary_version_id, row.canary_percent) != (target.id, canary.percent):
        detail: dict[str, object] = {"version": canary.version, "percent": canary.percent}
        if row.canary_version_id is not None:
            was = await _number(session, row.canary_version_id)
            detail["was"] = {"version": was, "percent": row.canary_percent}
        row.canary_version_id, row.canary_percent = target.id, canary.percent
        row.updated_at = act.at
        await _tell(session, act, locked, alias, "canary", detail)
    return await get_alias(session, name, alias)


async def clear_canary(session: AsyncSession, act: Act, name: AdapterName, alias: str) -> Alias:
    """Let all requests of an alias run on its version; no effect without a canary.

    Raises:
        ModelNotFound: the tenant has no such alias.
    """
    locked, row = await _locked_alias(session, name, alias)
    if row.canary_version_id is not None:
        was = {
            "version": await _number(session, row.canary_version_id),
            "percent": row.canary_percent,
        }
        row.canary_version_id = row.canary_percent = None
        row.updated_at = act.at
        await _tell(session, act, locked, alias, "canary.clear", {"was": was})
    return await get_alias(session, name, alias)


async def promote(session: AsyncSession, act: Act, name: AdapterName, alias: str) -> Alias:
    """Let an alias mean its canary's version, for all requests.

    Raises:
        ModelNotFound: the tenant has no such alias.
        NothingToMoveTo: it has no canary, or it was promoted already.
    """
    locked, row = await _locked_alias(session, name, alias)
    if row.canary_version_id is None:
        raise NothingToMoveTo(f"The alias {locked.model}:{alias} has no canary.")
    left = await _number(session, row.version_id)
    to = await _number(session, row.canary_version_id)
    _move(row, row.canary_version_id, row.version_id, act.at)
    await _tell(session, act, locked, alias, "promote", {"from": left, "to": to})
    return await get_alias(session, name, alias)


async def delete_alias(session: AsyncSession, act: Act, name: AdapterName, alias: str) -> None:
    """Let an alias mean nothing; no effect if there is none.

    Raises:
        ModelNotFound: the tenant has no such adapter.
    """
    locked = await lock_adapter(session, name)
    row = await _row(session, locked, alias)
    if row is not None:
        await _delete(session, act, locked, row)


async def users_of(session: AsyncSession, version_id: int) -> list[str]:
    """Return the aliases that mean a version or have it as canary, by name."""
    query = select(AdapterAlias.name).where(
        (AdapterAlias.version_id == version_id) | (AdapterAlias.canary_version_id == version_id)
    )
    return list(await session.scalars(query.order_by(AdapterAlias.name)))


async def leave_version(
    session: AsyncSession, act: Act, locked: LockedAdapter, version_id: int
) -> None:
    """Take a version out of all aliases of its adapter: those that mean it go, canaries end."""
    query = select(AdapterAlias).where(AdapterAlias.adapter_id == locked.id)
    for row in list(await session.scalars(query)):
        if row.version_id == version_id:
            await _delete(session, act, locked, row)
        elif row.canary_version_id == version_id:
            was = {"version": await _number(session, version_id), "percent": row.canary_percent}
            row.canary_version_id = row.canary_percent = None
            await _tell(session, act, locked, row.name, "canary.clear", {"was": was})
    await session.flush()


async def forget_version(session: AsyncSession, version_id: int) -> None:
    """Let no alias go back to a version."""
    await session.execute(
        update(AdapterAlias)
        .where(AdapterAlias.previous_version_id == version_id)
        .values(previous_version_id=None)
    )


def _move(row: AdapterAlias, to: int, before: int | None, now: datetime) -> None:
    row.version_id, row.previous_version_id, row.updated_at = to, before, now
    row.canary_version_id = row.canary_percent = None


async def _delete(
    session: AsyncSession, act: Act, locked: LockedAdapter, row: AdapterAlias
) -> None:
    was = await _number(session, row.version_id)
    await session.delete(row)
    await _tell(session, act, locked, row.name, "delete", {"was": was})


async def _tell(
    session: AsyncSession,
    act: Act,
    locked: LockedAdapter,
    alias: str,
    what: str,
    detail: dict[str, object],
) -> None:
    subject = f"{locked.model}:{alias}"
    await audit.append(session, act, locked.tenant_id, f"adapter.alias.{what}", subject, detail)


async def _locked_alias(
    session: AsyncSession, name: AdapterName, alias: str
) -> tuple[LockedAdapter, AdapterAlias]:
    locked = await lock_adapter(session, name)
    row = await _row(session, locked, alias)
    if row is None:
        raise not_found(f"{name.adapter}:{alias}")
    return locked, row


async def _row(session: AsyncSession, locked: LockedAdapter, alias: str) -> AdapterAlias | None:
    query = select(AdapterAlias).where(
        AdapterAlias.adapter_id == locked.id, AdapterAlias.name == alias
    )
    return await session.scalar(query)


async def _ready(session: AsyncSession, locked: LockedAdapter, number: int) -> AdapterVersion:
    query = select(AdapterVersion).where(
        AdapterVersion.adapter_id == locked.id, AdapterVersion.number == number
    )
    version = await session.scalar(query)
    if version is None:
        raise not_found(f"{locked.model}@{number}")
    if version.status != "ready":
        remedy = "restore it first" if version.deletion is None else "publish it again first"
        told = f"The version {locked.model}@{number} is {version.status}"
        raise VersionNotReady(f"{told}; {remedy}.")
    return version


async def _number(session: AsyncSession, version_id: int) -> int:
    return (await session.get_one(AdapterVersion, version_id)).number


async def _check_number(session: AsyncSession, locked: LockedAdapter) -> None:
    query = select(func.count()).where(AdapterAlias.adapter_id == locked.id)
    if (await session.scalar(query) or 0) >= MAX_ALIASES:
        raise TooManyAliases(
            f"The adapter {locked.model} has {MAX_ALIASES} aliases, the most that it may; delete "
            "one first."
        )


def _aliases(tenant_id: str) -> "Select[str, str, AdapterAlias, int, int, int]":
    """Select aliases of one tenant only, with the numbers of the versions that they name."""
    meant, before, canary = (aliased(AdapterVersion) for _ in range(3))
    return (
        select(Tenant.name, Adapter.name, AdapterAlias, meant.number, before.number, canary.number)
        .join(Adapter, Adapter.tenant_id == Tenant.id)
        .join(AdapterAlias, AdapterAlias.adapter_id == Adapter.id)
        .join(meant, meant.id == AdapterAlias.version_id)
        .outerjoin(before, before.id == AdapterAlias.previous_version_id)
        .outerjoin(canary, canary.id == AdapterAlias.canary_version_id)
        .where(Tenant.id == tenant_id)
        .order_by(Adapter.name, AdapterAlias.name)
    )


def _alias(
    tenant: str,
    adapter: str,
    row: AdapterAlias,
    version: int,
    before: int | None,
    canary: int | None,
) -> Alias:
    percent = row.canary_percent
    return Alias(
        adapter=f"{tenant}/{adapter}",
        name=row.name,
        version=version,
        previous=before,
        canary=None if canary is None or percent is None else Canary(canary, percent),
        updated_at=row.updated_at,
    )
