"""The life of a version: ready → retired → deleted.

    published ──> ready ── retire ──> retired ── delete ──> (being deleted) ──> deleted
                    ^ <── restore ───────┘                         │               │
                    │ └───────────── delete ──────────────────────>┘               │
                    └────────────── published again ───────────────────────────────┘

Retired and deleted versions are not found by new requests. Those in flight end on their digest, or
are ended with `force`. A deletion is two steps, with any time between them and by whichever
process: it is asked for, and it is finished once no request is left (`gateways`). In the same
transaction the removal of the bytes begins (`byte_claims`): if the process dies before they are
gone, another goes on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import exists, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from loraplex.adapters.registry import aliases, byte_claims, gateways
from loraplex.adapters.registry.byte_claims import Claim
from loraplex.adapters.registry.errors import VersionInUse, VersionNotReady
from loraplex.adapters.registry.names import AdapterName, not_found
from loraplex.adapters.registry.registry import LockedAdapter, lock_adapter
from loraplex.adapters.registry.tables import Adapter, AdapterVersion
from loraplex.tenants import audit
from loraplex.tenants.audit import Act
from loraplex.tenants.tables import Tenant

Mode = Literal["drain", "force"]


@dataclass(frozen=True, slots=True)
class Deletion:
    """A version that is being deleted."""

    id: str
    """Of this deletion: the version's next one has another."""
    version_id: int
    tenant_id: str
    adapter: str
    model: str
    """`tenant/adapter@version`."""
    digest: str
    is_forced: bool
    is_shared: bool
    """True if the tenant has another version of these bytes, which stays."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A deletion that is over, but for its bytes."""

    removal: Claim | None
    """What is to be removed now; None if others need it."""


async def retire(
    session: AsyncSession, act: Act, name: AdapterName, number: int, *, force: bool = False
) -> None:
    """Let no new request find a version; no effect if none does.

    Raises:
        ModelNotFound: the tenant has no such version.
        VersionInUse: an alias means it, and `force` is false; with it the alias goes.
    """
    locked, version = await _locked_version(session, name, number)
    if version.status == "ready":
        await _leave_aliases(session, act, locked, version, force=force)
        version.status, version.retired_at, version.is_pinned = "retired", act.at, False
        await _tell(session, act, locked, version, "retire")


async def restore(session: AsyncSession, act: Act, name: AdapterName, number: int) -> None:
    """Let requests find a retired version again; no effect if they do.

    Raises:
        ModelNotFound: the tenant has no such version.
        VersionNotReady: it is deleted, or being so.
    """
    locked, version = await _locked_version(session, name, number)
    if version.status == "deleted" or version.deletion is not None:
        raise VersionNotReady(
            f"The version {locked.model}@{number} is deleted; publish the same bytes again to have "
            "it back."
        )
    if version.status == "retired":
        version.status, version.retired_at = "ready", None
        await _tell(session, act, locked, version, "restore")


async def delete_version(
    session: AsyncSession, act: Act, name: AdapterName, number: int, mode: Mode
) -> None:
    """Begin to delete a version: no new request finds it. `finish` ends it.

    With `force` the requests on it are ended, also if it was being drained, and aliases that mean
    it go. No effect on what is deleted.

    Raises:
        ModelNotFound: the tenant has no such version.
        VersionInUse: an alias means it, and the mode is `drain`.
    """
    locked, version = await _locked_version(session, name, number)
    await _begin(session, act, locked, version, mode)


async def delete_adapter(session: AsyncSession, act: Act, name: AdapterName, mode: Mode) -> None:
    """Begin to delete all versions of an adapter; its aliases go.

    Raises:
        ModelNotFound: the tenant has no such adapter.
    """
    locked = await lock_adapter(session, name)
    for alias in await aliases.list_aliases(session, name.tenant_id, name.adapter):
        await aliases.delete_alias(session, act, name, alias.name)
    query = select(AdapterVersion).where(AdapterVersion.adapter_id == locked.id)
    versions = list(await session.scalars(query.order_by(AdapterVersion.number)))
    if not versions:
        raise not_found(name.adapter)
    for version in versions:
        await _begin(session, act, locked, version, mode)


async def list_deletions(session: AsyncSession) -> list[Deletion]:
    """Return the versions, of all tenants, whose deletion is not finished."""
    other, other_adapter = aliased(AdapterVersion), aliased(Adapter)
    is_shared = exists(
        select(other.id)
        .join(other_adapter, other_adapter.id == other.adapter_id)
        .where(
            other_adapter.tenant_id == Adapter.tenant_id,
            other.digest == AdapterVersion.digest,
            other.status != "deleted",
            other.deletion.is_(None),
        )
    )
    query = (
        select(Tenant, Adapter, AdapterVersion, is_shared)
        .join(Adapter, Adapter.tenant_id == Tenant.id)
        .join(AdapterVersion, AdapterVersion.adapter_id == Adapter.id)
        .where(AdapterVersion.deletion.is_not(None))
        .order_by(AdapterVersion.id)
    )
    return [
        Deletion(
            id=_id_of(version),
            version_id=version.id,
            tenant_id=tenant.id,
            adapter=adapter.name,
            model=f"{tenant.name}/{adapter.name}@{version.number}",
            digest=version.digest,
            is_forced=version.deletion == "force",
            is_shared=shared,
        )
        for tenant, adapter, version, shared in await session.execute(query)
    ]


async def finish(session: AsyncSession, deletion: Deletion, now: datetime) -> Finished | None:
    """Finish a deletion if no request is left; None if it goes on, or is none any more. Whoever
    does removes its bytes then, unless another version names them."""
    name = AdapterName(deletion.tenant_id, deletion.adapter)
    locked = await lock_adapter(session, name)
    version = await session.get_one(AdapterVersion, deletion.version_id, populate_existing=True)
    if version.deletion is None or not await gateways.is_cleared(session, _id_of(version), now):
        return None
    version.status, version.deletion, version.deleted_at = "deleted", None, now
    await session.flush()
    removal = await byte_claims.begin_removal(session, version.digest, now)
    act, detail = Act(audit.PLATFORM, now), {"bytes_removed": removal is not None}
    await _tell(session, act, locked, version, "deleted", detail)
    return Finished(removal)


async def _begin(
    session: AsyncSession, act: Act, locked: LockedAdapter, version: AdapterVersion, mode: Mode
) -> None:
    if version.status == "deleted" or version.deletion in (mode, "force"):
        return
    if version.deletion is None:
        await _leave_aliases(session, act, locked, version, force=mode == "force")
        await aliases.forget_version(session, version.id)
        version.num_deletions += 1
    version.status, version.is_pinned, version.deletion = "retired", False, mode
    version.retired_at = version.retired_at or act.at
    await _tell(session, act, locked, version, "delete", {"mode": mode})


def _id_of(version: AdapterVersion) -> str:
    return f"{version.id}.{version.num_deletions}"


async def _leave_aliases(
    session: AsyncSession, act: Act, locked: LockedAdapter, version: AdapterVersion, *, force: bool
) -> None:
    users = await aliases.users_of(session, version.id)
    if not users:
        return
    if not force:
        raise VersionInUse(
            f"The version {locked.model}@{version.number} is what {_listed(users)} means or sends "
            "requests to; move or delete the alias first, or use force, which deletes it."
        )
    await aliases.leave_version(session, act, locked, version.id)


def _listed(users: Sequence[str]) -> str:
    shown = ", ".join(f"the alias {user}" for user in users[:3])
    return shown if len(users) <= 3 else f"{shown} and {len(users) - 3} more"


async def _locked_version(
    session: AsyncSession, name: AdapterName, number: int
) -> tuple[LockedAdapter, AdapterVersion]:
    locked = await lock_adapter(session, name)
    query = select(AdapterVersion).where(
        AdapterVersion.adapter_id == locked.id, AdapterVersion.number == number
    )
    version = await session.scalar(query)
    if version is None:
        raise not_found(f"{name.adapter}@{number}")
    return locked, version


async def _tell(
    session: AsyncSession,
    act: Act,
    locked: LockedAdapter,
    version: AdapterVersion,
    what: str,
    detail: Mapping[str, object] | None = None,
) -> None:
    subject = f"{locked.model}@{version.number}"
    told = {"digest": version.digest, **(detail or {})}
    await audit.append(session, act, locked.tenant_id, f"adapter.version.{what}", subject, told)
