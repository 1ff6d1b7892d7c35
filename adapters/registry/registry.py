"""The versions of a tenant's adapters: published once, never changed."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.registry import byte_claims, storage_use
from loraplex.adapters.registry.byte_claims import Claim
from loraplex.adapters.registry.errors import VersionConflict
from loraplex.adapters.registry.names import AdapterName, check_adapter_name, not_found
from loraplex.adapters.registry.tables import Adapter, AdapterVersion
from loraplex.tenants import audit
from loraplex.tenants.audit import Act, Actor
from loraplex.tenants.dialects import insert_unless_there
from loraplex.tenants.tables import Tenant


@dataclass(frozen=True, slots=True)
class Publication:
    """A validated checkpoint, and the name it is published under."""

    name: str
    digest: str
    rank: int
    """Largest rank of its modules."""
    num_bytes: int
    base_model: str
    """Name of the base model it was validated against."""
    num_modules: int = 0
    """Modules that it changes."""
    profile: str | None = None
    """JSON: see `adapters.profile.Profile`."""
    self_test: str | None = None
    """JSON: what the self-test found; None if none ran."""
    warnings: tuple[str, ...] = ()
    """What is legal and yet hardly meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a version is in its life."""

    status: str = "ready"
    """`ready`, `retired` or `deleted`."""
    is_pinned: bool = False
    retired_at: datetime | None = None
    deletion: str | None = None
    """`drain` or `force` while it is being deleted."""
    deleted_at: datetime | None = None


READY = Standing()


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """One version of an adapter."""

    model: str
    """`tenant/adapter`, without the version."""
    version: int
    digest: str
    rank: int
    num_bytes: int
    base_model: str
    created_at: datetime
    standing: Standing = READY
    self_test: dict[str, Any] | None = None
    """What the self-test at registration compared and found; None if none ran."""
    warnings: tuple[str, ...] = ()
    """What is legal and yet hardly meant."""


async def publish(
    session: AsyncSession,
    tenant_id: str,
    publication: Publication,
    now: datetime,
    actor: Actor = audit.PLATFORM,
    claim: Claim | None = None,
) -> PublishedVersion:
    """Make the checkpoint the newest version of the name; one that it has already is returned, and
    is ready again if it was retired or deleted.

    `claim` is that under which its bytes were put into the store; it ends. None: nobody else can
    have removed them.

    Raises:
        NameInvalid: the name is not a slug, or reserved.
        VersionConflict: it has the checkpoint already, for another base model.
        AdapterTooLarge, StorageLimitReached: a limit of the tenant.
        BytesLeaving: the claim was over already.
    """
    check_adapter_name(publication.name)
    await storage_use.check_limits(session, tenant_id, publication)
    act = Act(actor, now)
    adapter_id = await _made_adapter(session, tenant_id, publication.name, now)
    await byte_claims.lock_digest(session, publication.digest)
    if claim is not None:
        await byte_claims.end_keep(session, claim)
    versions = select(AdapterVersion).where(AdapterVersion.adapter_id == adapter_id)
    stored = await session.scalar(versions.where(AdapterVersion.digest == publication.digest))
    if stored is None:
        newest = await session.scalar(versions.order_by(AdapterVersion.number.desc()).limit(1))
        number = 1 if newest is None else newest.number + 1
        stored = _new_version(adapter_id, number, publication, now)
        session.add(stored)
        await session.flush()
        await _tell(session, act, tenant_id, stored, None)
    elif stored.base_model != publication.base_model:
        raise VersionConflict(
            f"This checkpoint is version {stored.number} of {publication.name} already, for the "
            f"base model {stored.base_model}; publish it for {publication.base_model} under "
            "another name."
        )
    elif stored.status != "ready":
        before = stored.status
        stored.status, stored.deletion = "ready", None
        stored.retired_at = stored.deleted_at = None
        await _tell(session, act, tenant_id, stored, before)
    if publication.self_test is not None:
        stored.self_test = publication.self_test
        await session.flush()
    found = await session.execute(versions_of(tenant_id).where(AdapterVersion.id == stored.id))
    return published(*found.one())


def _new_version(
    adapter_id: int, number: int, publication: Publication, now: datetime
) -> AdapterVersion:
    return AdapterVersion(
        adapter_id=adapter_id,
        number=number,
        digest=publication.digest,
        rank=publication.rank,
        num_bytes=publication.num_bytes,
        base_model=publication.base_model,
        profile=publication.profile,
        warnings=json.dumps(publication.warnings) if publication.warnings else None,
        created_at=now,
    )


async def list_versions(session: AsyncSession, tenant_id: str) -> list[PublishedVersion]:
    """Return all versions of all adapters of the tenant that are not deleted: by name, newest
    first."""
    query = versions_of(tenant_id).where(AdapterVersion.status != "deleted")
    return [published(*row) for row in await session.execute(query)]


async def list_all_versions(session: AsyncSession, name: AdapterName) -> list[PublishedVersion]:
    """Return all versions of one adapter, deleted ones too, newest first.

    Raises:
        ModelNotFound: the tenant has no such adapter.
    """
    query = versions_of(name.tenant_id).where(Adapter.name == name.adapter)
    found = [published(*row) for row in await session.execute(query)]
    if not found:
        raise not_found(name.adapter)
    return found


async def find_version(
    session: AsyncSession, name: AdapterName, digest: str
) -> PublishedVersion | None:
    """Return the version of these bytes, whatever its status; None if the adapter has none."""
    query = versions_of(name.tenant_id).where(
        Adapter.name == name.adapter, AdapterVersion.digest == digest
    )
    row = (await session.execute(query)).one_or_none()
    return None if row is None else published(*row)


async def get_version(session: AsyncSession, name: AdapterName, number: int) -> PublishedVersion:
    """Return one version, whatever its status.

    Raises:
        ModelNotFound: the tenant has no such adapter, or that no such version.
    """
    query = versions_of(name.tenant_id).where(
        Adapter.name == name.adapter, AdapterVersion.number == number
    )
    row = (await session.execute(query)).one_or_none()
    if row is None:
        raise not_found(f"{name.adapter}@{number}")
    return published(*row)


def versions_of(tenant_id: str) -> "Select[str, Adapter, AdapterVersion]":
    """Select versions of one tenant only; every reading function goes through here."""
    return (
        select(Tenant.name, Adapter, AdapterVersion)
        .join(Adapter, Adapter.tenant_id == Tenant.id)
        .join(AdapterVersion, AdapterVersion.adapter_id == Adapter.id)
        .where(Tenant.id == tenant_id)
        .order_by(Adapter.name, AdapterVersion.number.desc())
    )


def published(tenant_name: str, adapter: Adapter, version: AdapterVersion) -> PublishedVersion:
    """What a row of `versions_of` says."""
    return PublishedVersion(
        model=f"{tenant_name}/{adapter.name}",
        version=version.number,
        digest=version.digest,
        rank=version.rank,
        num_bytes=version.num_bytes,
        base_model=version.base_model,
        created_at=version.created_at,
        standing=Standing(
            status=version.status,
            is_pinned=version.is_pinned,
            retired_at=version.retired_at,
            deletion=version.deletion,
            deleted_at=version.deleted_at,
        ),
        self_test=None if version.self_test is None else json.loads(version.self_test),
        warnings=tuple(json.loads(version.warnings or "[]")),
    )


@dataclass(frozen=True, slots=True)
class LockedAdapter:
    """An adapter that only this transaction changes, with its aliases and versions."""

    id: int
    model: str
    """`tenant/adapter`."""
    tenant_id: str


async def lock_adapter(session: AsyncSession, name: AdapterName) -> LockedAdapter:
    """Let others who would change the adapter wait until this transaction ends.

    Raises:
        ModelNotFound: the tenant has no such adapter.
    """
    # SQLite's transaction holds the only write lock already, and ignores the lock of the row.
    query = (
        select(Adapter.id, Tenant.name)
        .join(Tenant, Tenant.id == Adapter.tenant_id)
        .where(Adapter.tenant_id == name.tenant_id, Adapter.name == name.adapter)
        .with_for_update(of=Adapter)
    )
    row = (await session.execute(query)).one_or_none()
    if row is None:
        raise not_found(name.adapter)
    return LockedAdapter(row[0], f"{row[1]}/{name.adapter}", name.tenant_id)


async def _made_adapter(session: AsyncSession, tenant_id: str, name: str, now: datetime) -> int:
    """Return the adapter's id, made if absent; others who publish to it wait until we commit."""
    await session.execute(
        insert_unless_there(
            session, Adapter, "tenant_id", "name", tenant_id=tenant_id, name=name, created_at=now
        )
    )
    return (await lock_adapter(session, AdapterName(tenant_id, name))).id


async def _tell(
    session: AsyncSession, act: Act, tenant_id: str, stored: AdapterVersion, before: str | None
) -> None:
    row = await session.execute(versions_of(tenant_id).where(AdapterVersion.id == stored.id))
    version = published(*row.one())
    detail: dict[str, object] = {"digest": version.digest, "num_bytes": version.num_bytes}
    if before is not None:
        detail["was"] = before
    subject = f"{version.model}@{version.version}"
    await audit.append(session, act, tenant_id, "adapter.publish", subject, detail)
