"""What became of each upload: `uploading → validating → ready | rejected`, or `cancelled`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import msgspec
from sqlalchemy import Select, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.errors import Problem
from loraplex.adapters.registry.errors import UploadConflict, UploadNotFound
from loraplex.adapters.registry.registry import PublishedVersion
from loraplex.adapters.registry.tables import Adapter, AdapterUpload, AdapterVersion
from loraplex.tenants.dialects import lock_text
from loraplex.tenants.tables import Tenant

OPEN = ("uploading", "validating")
"""Statuses of an upload that is not over."""


@dataclass(frozen=True, slots=True)
class NewUpload:
    """An upload that begins."""

    id: str
    name: str
    """Of the adapter."""
    files: Mapping[str, int]
    """Name to length in bytes."""
    source: str | None = None
    """`source:path` of an import."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Of the files of which it was announced, in hexadecimal."""


@dataclass(frozen=True, slots=True)
class UploadRecord:
    """An upload as it stands."""

    id: str
    name: str
    status: str
    source: str | None
    files: Mapping[str, int]
    sha256: Mapping[str, str]
    """As `NewUpload` has both."""
    problems: tuple[Problem, ...]
    version: str | None
    """`tenant/adapter@3`, once it is ready."""
    warnings: tuple[str, ...]
    """Of that version."""
    created_at: datetime
    updated_at: datetime


async def add(
    session: AsyncSession, tenant_id: str, new: NewUpload, status: str, now: datetime
) -> None:
    """Note that an upload begins, in `uploading` or, if all is there, in `validating`."""
    session.add(
        AdapterUpload(
            id=new.id,
            tenant_id=tenant_id,
            name=new.name,
            status=status,
            source=new.source,
            files=msgspec.json.encode(_announced(new), order="sorted").decode(),
            created_at=now,
            updated_at=now,
        )
    )
    await session.flush()


async def get(session: AsyncSession, tenant_id: str, upload_id: str) -> UploadRecord:
    """Return one. Raises UploadNotFound."""
    query = _records(tenant_id).where(AdapterUpload.id == upload_id)
    row = (await session.execute(query)).one_or_none()
    if row is None:
        raise UploadNotFound(f"There is no upload {upload_id[:60]!r}.")
    return _record(*row)


async def list_uploads(session: AsyncSession, tenant_id: str, limit: int) -> list[UploadRecord]:
    """Return a tenant's newest uploads, newest first."""
    query = _records(tenant_id).order_by(AdapterUpload.created_at.desc(), AdapterUpload.id.desc())
    return [_record(*row) for row in await session.execute(query.limit(limit))]


async def lock_uploading(session: AsyncSession, tenant_id: str) -> list[UploadRecord]:
    """Return the uploads of a tenant to which bytes may come; until this transaction ends, no other
    one that asks for them begins one."""
    await lock_text(session, f"uploads of {tenant_id}")
    query = _records(tenant_id).where(AdapterUpload.status == "uploading")
    return [_record(*row) for row in await session.execute(query)]


async def open_ids(session: AsyncSession) -> frozenset[str]:
    """Ids of the uploads of all tenants that are not over."""
    query = select(AdapterUpload.id).where(AdapterUpload.status.in_(OPEN))
    return frozenset(await session.scalars(query))


async def claim(
    session: AsyncSession, tenant_id: str, upload_id: str, now: datetime, stale_before: datetime
) -> bool:
    """Take an upload from `uploading` to `validating`; false unless this call did. One whose check
    began before `stale_before` counts as uploading: who checked it has died."""
    stale = (AdapterUpload.status == "validating") & (AdapterUpload.updated_at < stale_before)
    return await _change(
        session,
        (AdapterUpload.id == upload_id)
        & (AdapterUpload.tenant_id == tenant_id)
        & ((AdapterUpload.status == "uploading") | stale),
        status="validating",
        updated_at=now,
    )


async def touch(session: AsyncSession, upload_id: str, now: datetime) -> None:
    """Note that bytes came. Raises UploadConflict if it takes none any more."""
    is_open = (AdapterUpload.id == upload_id) & (AdapterUpload.status == "uploading")
    if not await _change(session, is_open, updated_at=now):
        raise UploadConflict("The upload takes no more bytes.")


async def finish(
    session: AsyncSession,
    tenant_id: str,
    upload_id: str,
    version: PublishedVersion,
    now: datetime,
) -> None:
    """Say of which version it became."""
    _, _, name = version.model.partition("/")
    version_id = (
        select(AdapterVersion.id)
        .join(Adapter, Adapter.id == AdapterVersion.adapter_id)
        .where(
            Adapter.tenant_id == tenant_id,
            Adapter.name == name,
            AdapterVersion.number == version.version,
        )
        .scalar_subquery()
    )
    await _change(
        session,
        AdapterUpload.id == upload_id,
        status="ready",
        version_id=version_id,
        updated_at=now,
    )


async def end(
    session: AsyncSession,
    upload_id: str,
    status: str,
    now: datetime,
    problems: tuple[Problem, ...] = (),
) -> None:
    """Leave `validating` for `rejected`, `cancelled` or, to try again, `uploading`."""
    told = None if not problems else msgspec.json.encode([p._asdict() for p in problems]).decode()
    await _change(
        session,
        (AdapterUpload.id == upload_id) & AdapterUpload.status.in_(OPEN),
        status=status,
        problems=told,
        updated_at=now,
    )


async def cancel(session: AsyncSession, tenant_id: str, upload_id: str, now: datetime) -> None:
    """Cancel one that is uploading; one that is cancelled stays so.

    Raises:
        UploadNotFound: there is no such upload.
        UploadConflict: it is being checked, or over.
    """
    record = await get(session, tenant_id, upload_id)
    is_open = (AdapterUpload.id == upload_id) & (AdapterUpload.status == "uploading")
    if not await _change(session, is_open, status="cancelled", updated_at=now):
        status = (await get(session, tenant_id, upload_id)).status
        if status != "cancelled":
            raise UploadConflict(f"The upload {record.id} is {status}; it cannot be cancelled.")


async def expire(session: AsyncSession, before: datetime, now: datetime) -> list[str]:
    """Cancel uploads that nothing came for since `before`; return their ids."""
    query = select(AdapterUpload.id).where(
        AdapterUpload.status.in_(OPEN), AdapterUpload.updated_at < before
    )
    expired = list(await session.scalars(query))
    for upload_id in expired:
        await end(session, upload_id, "cancelled", now)
    return expired


async def _change(session: AsyncSession, where: object, **values: object) -> bool:
    result = await session.execute(update(AdapterUpload).where(where).values(**values))  # type: ignore[arg-type]  # a condition
    return bool(result.rowcount)  # type: ignore[attr-defined]  # of an update


def _records(tenant_id: str) -> "Select[AdapterUpload, str, str | None, AdapterVersion | None]":
    return (
        select(AdapterUpload, Tenant.name, Adapter.name, AdapterVersion)
        .join(Tenant, Tenant.id == AdapterUpload.tenant_id)
        .outerjoin(AdapterVersion, AdapterVersion.id == AdapterUpload.version_id)
        .outerjoin(Adapter, Adapter.id == AdapterVersion.adapter_id)
        .where(AdapterUpload.tenant_id == tenant_id)
    )


class _Announced(msgspec.Struct, frozen=True, rename={"num_bytes": "bytes"}):
    """A file of which the SHA-256 is known, too; of others the length stands alone."""

    num_bytes: int
    sha256: str


def _announced(new: NewUpload) -> dict[str, int | _Announced]:
    return {
        name: _Announced(length, new.sha256[name]) if name in new.sha256 else length
        for name, length in new.files.items()
    }


def _record(
    upload: AdapterUpload, tenant: str, adapter: str | None, version: AdapterVersion | None
) -> UploadRecord:
    files = msgspec.json.decode(upload.files, type=dict[str, int | _Announced])
    problems = msgspec.json.decode(upload.problems or "[]", type=list[dict[str, str]])
    return UploadRecord(
        id=upload.id,
        name=upload.name,
        status=upload.status,
        source=upload.source,
        files={n: f if isinstance(f, int) else f.num_bytes for n, f in files.items()},
        sha256={n: f.sha256 for n, f in files.items() if isinstance(f, _Announced)},
        problems=tuple(Problem(**problem) for problem in problems),
        version=None if version is None else f"{tenant}/{adapter}@{version.number}",
        warnings=() if version is None else tuple(json.loads(version.warnings or "[]")),
        created_at=upload.created_at,
        updated_at=upload.updated_at,
    )
