"""Names of adapters, resolved to immutable digests inside one tenant."""

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.registry.errors import ModelNotFound, VersionConflict
from loraplex.adapters.registry.tables import Adapter, AdapterVersion
from loraplex.tenants.dialects import insert_unless_there
from loraplex.tenants.ids import SLUG, check_slug
from loraplex.tenants.tables import Tenant

_MODEL = re.compile(rf"({SLUG})/({SLUG})(?:@([1-9][0-9]{{0,8}}))?")


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
    self_test: str | None = None
    """JSON: what the self-test found; None if none ran."""


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
    self_test: dict[str, Any] | None = None
    """What the self-test at registration compared and found; None if none ran."""


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """What a request runs on from first to last token."""

    name: str
    """The base model's name, or `tenant/adapter@version`."""
    digest: str | None
    """None for the base model."""
    version: int | None


async def publish(
    session: AsyncSession, tenant_id: str, publication: Publication, now: datetime
) -> PublishedVersion:
    """Make the checkpoint the newest version of the name; one that it has already is returned.

    Raises:
        NameInvalid: the name is not a slug.
        VersionConflict: it has the checkpoint already, for another base model.
    """
    check_slug(publication.name, "The adapter's name")
    adapter_id = await _lock_adapter(session, tenant_id, publication.name, now)
    versions = select(AdapterVersion).where(AdapterVersion.adapter_id == adapter_id)
    stored = await session.scalar(versions.where(AdapterVersion.digest == publication.digest))
    if stored is None:
        newest = await session.scalar(versions.order_by(AdapterVersion.number.desc()).limit(1))
        stored = AdapterVersion(
            adapter_id=adapter_id,
            number=1 if newest is None else newest.number + 1,
            digest=publication.digest,
            rank=publication.rank,
            num_bytes=publication.num_bytes,
            base_model=publication.base_model,
            created_at=now,
        )
        session.add(stored)
        await session.flush()
    elif stored.base_model != publication.base_model:
        raise VersionConflict(
            f"This checkpoint is version {stored.number} of {publication.name} already, for the "
            f"base model {stored.base_model}; publish it for {publication.base_model} under "
            "another name."
        )
    if publication.self_test is not None:
        stored.self_test = publication.self_test
        await session.flush()
    found = await session.execute(_versions(tenant_id).where(AdapterVersion.id == stored.id))
    return _published(*found.one())


async def resolve(
    session: AsyncSession, tenant_id: str, model: str, base_model: str
) -> ResolvedModel:
    """Return what `model` means for this tenant, now: a base model, or one version of an adapter.

    Only versions made for the base model that is served, `base_model`, are found.

    Raises:
        ModelNotFound: nothing that this tenant may use has the name.
    """
    if model == base_model:
        return ResolvedModel(base_model, digest=None, version=None)
    match = _MODEL.fullmatch(model)
    if match is None:
        raise _not_found(model)
    query = _versions(tenant_id).where(
        Tenant.name == match[1],
        Adapter.name == match[2],
        AdapterVersion.base_model == base_model,
    )
    if match[3] is not None:
        query = query.where(AdapterVersion.number == int(match[3]))
    row = (await session.execute(query.limit(1))).one_or_none()
    if row is None:
        raise _not_found(model)
    found = _published(*row)
    return ResolvedModel(f"{found.model}@{found.version}", found.digest, found.version)


async def list_models(
    session: AsyncSession, tenant_id: str, base_model: str
) -> list[PublishedVersion]:
    """Return what each name of the tenant resolves to on this base model, by name."""
    query = _versions(tenant_id).where(AdapterVersion.base_model == base_model)
    newest: dict[str, PublishedVersion] = {}
    for row in await session.execute(query):
        version = _published(*row)
        newest.setdefault(version.model, version)
    return list(newest.values())


async def list_versions(session: AsyncSession, tenant_id: str) -> list[PublishedVersion]:
    """Return all versions of all adapters of the tenant: by name, newest first."""
    return [_published(*row) for row in await session.execute(_versions(tenant_id))]


def _versions(tenant_id: str) -> "Select[str, Adapter, AdapterVersion]":
    """Select versions of one tenant only; every reading function goes through here."""
    return (
        select(Tenant.name, Adapter, AdapterVersion)
        .join(Adapter, Adapter.tenant_id == Tenant.id)
        .join(AdapterVersion, AdapterVersion.adapter_id == Adapter.id)
        .where(Tenant.id == tenant_id)
        .order_by(Adapter.name, AdapterVersion.number.desc())
    )


def _published(tenant_name: str, adapter: Adapter, version: AdapterVersion) -> PublishedVersion:
    return PublishedVersion(
        model=f"{tenant_name}/{adapter.name}",
        version=version.number,
        digest=version.digest,
        rank=version.rank,
        num_bytes=version.num_bytes,
        base_model=version.base_model,
        created_at=version.created_at,
        self_test=None if version.self_test is None else json.loads(version.self_test),
    )


async def _lock_adapter(session: AsyncSession, tenant_id: str, name: str, now: datetime) -> int:
    """Return the adapter's id, made if absent; others who publish to it wait until we commit."""
    await session.execute(
        insert_unless_there(
            session, Adapter, "tenant_id", "name", tenant_id=tenant_id, name=name, created_at=now
        )
    )
    # SQLite's transaction holds the only write lock already, and ignores the lock of the row.
    row = await session.execute(
        select(Adapter.id)
        .where(Adapter.tenant_id == tenant_id, Adapter.name == name)
        .with_for_update()
    )
    return row.scalar_one()


def _not_found(model: str) -> ModelNotFound:
    return ModelNotFound(f"The model {model[:200]!r} does not exist or you have no access to it.")
