"""Keys made, changed, rotated and revoked: each told to the audit log, none beyond its bounds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, Literal

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants import api_keys, audit, projects
from loraplex.tenants.api_keys import ANY_SCOPES, PREFIX, KeyRecord, scopes_of
from loraplex.tenants.audit import Act
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.errors import ExceedsParent, KeyEnded, SelfWidening, ValueRefused
from loraplex.tenants.grantors import check_project, check_unlimited
from loraplex.tenants.ids import Entropy
from loraplex.tenants.key_scopes import (
    Grantor,
    KeyScopes,
    check_child,
    check_scopes,
    read_list,
    scopes_from,
    stored,
)
from loraplex.tenants.key_text import MintedKey, key_hash, renewed_key
from loraplex.tenants.limit_parents import check_key_limits_within
from loraplex.tenants.tables import ApiKey, Project

DEFAULT_GRACE = timedelta(hours=24)
MAX_GRACE = timedelta(days=30)


class Same(Enum):
    """What a change says of a field that stays as it is."""

    SAME = "same"


SAME: Final = Same.SAME


@dataclass(frozen=True, slots=True)
class NewKey:
    """What is said of a key that is to be made."""

    label: str = ""
    project: str = projects.DEFAULT
    """Name or id of the project."""
    scopes: KeyScopes = ANY_SCOPES
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class KeyChange:
    """What is to change of a key."""

    label: str | Literal[Same.SAME] = SAME
    project: str | Literal[Same.SAME] = SAME
    """Name or id of the project that it moves to."""
    scopes: Mapping[str, Any] = field(default_factory=dict)
    """Those fields of KeyScopes that change, lists of texts allowed. Others stay as they are when
    this is done, whoever changed them meanwhile."""
    expires_at: datetime | Literal[Same.SAME] | None = SAME


async def create(
    session: AsyncSession,
    grantor: Grantor,
    tenant: TenantRecord,
    wanted: NewKey,
    pepper: bytes,
    entropy: Entropy,
) -> MintedKey:
    """Make a key in one of the tenant's projects and store its hash.

    Raises:
        ProjectNotFound: the tenant has no such project.
        ProjectProtected: the project is archived.
        ValueRefused: label, expiry or a scope cannot be.
        ExceedsParent: it would have more than its project, its role or whoever makes it, or not the
            limits that the key has which makes it.
    """
    at = grantor.act.at
    project = await projects.get_row(session, tenant.id, wanted.project, locked=True)
    projects.check_active(project)
    check_scopes(wanted.scopes)
    check_child(grantor, wanted.scopes, wanted.expires_at, read_list(project.models))
    await check_unlimited(session, grantor, tenant.id)
    await check_project(session, grantor, tenant.id, project.id)
    minted = await api_keys.mint(
        session, tenant, wanted.label, pepper, at, entropy, wanted.expires_at
    )
    row = await session.get_one(ApiKey, minted.key_id)
    row.project_id = project.id
    _put_scopes(row, wanted.scopes)
    await session.flush()
    detail = {"label": row.label, **_told(row, project.name)}
    await audit.append(session, grantor.act, tenant.id, "key.create", row.id, detail)
    return minted


async def change(
    session: AsyncSession, grantor: Grantor, tenant_id: str, key_id: str, wanted: KeyChange
) -> KeyRecord:
    """Change a key of the tenant, for requests from now on.

    Raises:
        KeyNotFound, ProjectNotFound: the tenant has none such.
        KeyEnded: the key was revoked.
        SelfWidening: a key would change itself.
        ProjectProtected, ValueRefused, ExceedsParent: as in `create`; limits of the key, too, are
            within those of a project that it moves to.
    """
    if grantor.key_id == key_id:
        raise SelfWidening("A key cannot change itself; another key or a person can.")
    row = await _get(session, tenant_id, key_id)
    before_project = await session.get_one(Project, row.project_id)
    before = {"label": row.label, **_told(row, before_project.name)}
    _check_may_touch(grantor, row, before_project)
    project = before_project
    if wanted.project is not SAME:
        project = await projects.get_row(session, tenant_id, wanted.project, locked=True)
        projects.check_active(project)
        await check_key_limits_within(session, tenant_id, row.id, project.id)
    label = row.label if wanted.label is SAME else wanted.label
    expires_at = row.expires_at if wanted.expires_at is SAME else wanted.expires_at
    new_expiry = None if wanted.expires_at is SAME else wanted.expires_at
    api_keys.check_new_key(label, new_expiry, grantor.act.at)
    scopes = scopes_from(wanted.scopes, scopes_of(row))
    check_scopes(scopes)
    check_child(grantor, scopes, expires_at, read_list(project.models))
    row.label, row.expires_at, row.project_id = label, expires_at, project.id
    _put_scopes(row, scopes)
    await session.flush()
    after = {"label": row.label, **_told(row, project.name)}
    changed = {
        name: {"from": before[name], "to": to} for name, to in after.items() if to != before[name]
    }
    if changed:
        await audit.append(session, grantor.act, tenant_id, "key.change", row.id, changed)
    return api_keys.record_of(row, project.name)


async def rotate(
    session: AsyncSession,
    grantor: Grantor,
    tenant_id: str,
    key_id: str,
    grace: timedelta,
    pepper: bytes,
    entropy: Entropy,
) -> MintedKey:
    """Give a key another secret under its id. The one before opens for the grace; the one before
    that has ended. Whoever lost the answer rotates again.

    Raises:
        KeyNotFound: the tenant has no such key.
        KeyEnded: it was revoked.
        ValueRefused: the grace is longer than 30 days, or negative.
        ExceedsParent: the key has more than whoever rotates it, who would get its secret.
    """
    if not timedelta(0) <= grace <= MAX_GRACE:
        most = int(MAX_GRACE.total_seconds())
        raise ValueRefused(
            f"grace_s must be 0 to {most}, not {grace.total_seconds():.0f}.", "grace_s"
        )
    row = await _get(session, tenant_id, key_id)
    if grantor.key_id != key_id:
        await check_unlimited(session, grantor, tenant_id)
        await check_project(session, grantor, tenant_id, row.project_id)
        _check_may_touch(grantor, row, await session.get_one(Project, row.project_id))
    at = grantor.act.at
    minted = renewed_key(PREFIX, row.id, entropy)
    has_grace = grace > timedelta(0)
    row.previous_hash = row.key_hash if has_grace else None
    row.previous_until = at + grace if has_grace else None
    row.key_hash, row.rotated_at = key_hash(minted.text, pepper), at
    await session.flush()
    detail = {"grace_s": int(grace.total_seconds())}
    await audit.append(session, grantor.act, tenant_id, "key.rotate", row.id, detail)
    return minted


async def revoke(session: AsyncSession, act: Act, tenant_id: str, key_id: str) -> None:
    """Revoke a key of the tenant; a key that is revoked already keeps its time.

    Raises:
        KeyNotFound: the tenant has no such key.
    """
    row = await _find(session, tenant_id, key_id)
    if row.revoked_at is None:
        row.revoked_at = act.at
        await session.flush()
        await audit.append(session, act, tenant_id, "key.revoke", row.id, {"label": row.label})


async def revoke_previous(
    session: AsyncSession, act: Act, tenant_id: str, key_id: str
) -> KeyRecord:
    """End the secret before the last rotation, whose grace is not over; no effect without one.

    Raises:
        KeyNotFound: the tenant has no such key.
    """
    row = await _find(session, tenant_id, key_id)
    if row.previous_hash is not None:
        row.previous_hash = row.previous_until = None
        await session.flush()
        await audit.append(
            session, act, tenant_id, "key.revoke_previous", row.id, {"label": row.label}
        )
    return await api_keys.get_key(session, tenant_id, key_id)


def _check_may_touch(grantor: Grantor, row: ApiKey, project: Project) -> None:
    """Refuse to let a lesser key change a greater one, or take it over."""
    try:
        check_child(grantor, scopes_of(row), row.expires_at, read_list(project.models))
    except ExceedsParent as error:
        raise ExceedsParent(
            f"The key {row.id} has more than yours, so yours cannot change it. {error}", error.field
        ) from None


async def _find(session: AsyncSession, tenant_id: str, key_id: str) -> ApiKey:
    query = select(ApiKey).where(ApiKey.id == key_id, ApiKey.tenant_id == tenant_id)
    # No key of it changes, so intents may go on to point at it.
    locked = query.with_for_update(key_share=True).execution_options(populate_existing=True)
    row = await session.scalar(locked)
    if row is None:
        raise api_keys.not_found(key_id)
    return row


async def _get(session: AsyncSession, tenant_id: str, key_id: str) -> ApiKey:
    row = await _find(session, tenant_id, key_id)
    if row.revoked_at is not None:
        raise KeyEnded(f"The key {row.id} was revoked; make another one.")
    return row


def _put_scopes(row: ApiKey, scopes: KeyScopes) -> None:
    row.role = scopes.role
    row.permissions = stored(scopes.permissions)
    row.models = stored(scopes.models)
    row.addresses = stored(scopes.addresses)


def _told(row: ApiKey, project: str) -> dict[str, object]:
    """What the audit log says of a key; its secret is not among it."""
    lists = {name: read_list(getattr(row, name)) for name in ("permissions", "models", "addresses")}
    return {
        "project": project,
        "role": row.role,
        **{name: None if value is None else list(value) for name, value in lists.items()},
        "expires_at": row.expires_at and row.expires_at.isoformat(),
    }
