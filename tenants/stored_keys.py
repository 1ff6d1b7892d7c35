"""What the database knows of an API key and of whatever it belongs to, and whether it opens.

The two are apart, so that what was read can be kept as long as nothing of it changes
(`platform/catalogue.py`), while clocks are asked each time. No secret is kept, only its hash.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants import limit_policies
from loraplex.tenants.api_keys import PREFIX, Principal, scopes_of
from loraplex.tenants.errors import (
    KeyExpired,
    KeyRefused,
    KeyRevoked,
    KeyUnknown,
    ProjectArchived,
    TenantSuspended,
)
from loraplex.tenants.key_scopes import read_list
from loraplex.tenants.key_text import is_key, parse
from loraplex.tenants.limits import TenantLimits
from loraplex.tenants.tables import ApiKey, Project, Tenant


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key as it is stored."""

    principal: Principal
    """Whom it stands for, if it opens."""
    hash: str
    previous_hash: str | None
    previous_until: datetime | None
    """Until when the secret before the last rotation opens, too."""
    revoked_at: datetime | None
    expires_at: datetime | None
    project_name: str
    project_is_active: bool
    tenant_is_active: bool

    @property
    def ended_by(self) -> KeyRefused | None:
        """Why its requests end, those that run as well; None if they do not."""
        principal = self.principal
        if self.revoked_at is not None:
            return KeyRevoked(f"The API key {principal.key_id} was revoked.")
        if not self.tenant_is_active:
            return TenantSuspended(f"The tenant {principal.tenant_name} is suspended.")
        if not self.project_is_active:
            return ProjectArchived(f"The project {self.project_name} is archived.")
        return None


def opened(key: StoredKey | None, text: str, pepper: bytes, now: datetime) -> Principal:
    """Return whom the key `text` authenticates at the time `now`; None is a key that is not there.

    Raises:
        KeyUnknown: no such key.
        KeyRevoked: it was revoked, or has another secret by now.
        KeyExpired, TenantSuspended, ProjectArchived: it is right, and opens nothing.
    """
    # Whoever lacks the secret learns nothing of the key's state: the hash comes first.
    is_current = key is not None and is_key(text, key.hash, pepper)
    if key is None or not (is_current or is_key(text, key.previous_hash or "", pepper)):
        raise KeyUnknown("The API key is not known.")
    if key.ended_by is not None:
        raise key.ended_by
    if key.expires_at is not None and key.expires_at <= now:
        raise KeyExpired(f"The API key {key.principal.key_id} has expired.")
    if not is_current and (key.previous_until is None or key.previous_until <= now):
        raise KeyRevoked(
            f"The API key {key.principal.key_id} was rotated; this secret of it has ended."
        )
    return key.principal if is_current else replace(key.principal, by_previous_secret=True)


async def verify(session: AsyncSession, text: str, pepper: bytes, now: datetime) -> Principal:
    """Return whom the key `text` authenticates at the time `now`, by what is stored now.

    Raises:
        KeyMalformed: no key of ours, or a typo; the database is not asked.
        KeyRefused: as `opened` does.
    """
    key_id = parse(PREFIX, text)
    found = await find_keys(session, [key_id])
    return opened(found.get(key_id), text, pepper, now)


async def find_keys(session: AsyncSession, key_ids: Collection[str]) -> Mapping[str, StoredKey]:
    """Return those of the keys that there are, by id."""
    query = (
        select(ApiKey, Tenant, Project)
        .join(Tenant, Tenant.id == ApiKey.tenant_id)
        .join(Project, Project.id == ApiKey.project_id)
        .where(ApiKey.id.in_(key_ids))
    )
    rows = (await session.execute(query)).all()
    own = await limit_policies.values_of_tenants(session, {tenant.id for _, tenant, _ in rows})
    return {
        key.id: _stored(key, tenant, project, own.get(tenant.id, {}))
        for key, tenant, project in rows
    }


def _stored(key: ApiKey, tenant: Tenant, project: Project, values: Mapping[str, int]) -> StoredKey:
    principal = Principal(
        tenant_id=tenant.id,
        tenant_name=tenant.name,
        key_id=key.id,
        weight=tenant.weight,
        limits=TenantLimits(**values, ttft_deadline_ms=tenant.ttft_deadline_ms),
        project_id=key.project_id,
        weight_version=tenant.version,
        service_tiers=tuple(tenant.service_tiers.split(",")),
        time_zone=tenant.time_zone,
        earlier_time_zones=tenant.earlier_time_zones,
        scopes=scopes_of(key),
        project_models=read_list(project.models),
        expires_at=key.expires_at,
    )
    return StoredKey(
        principal=principal,
        hash=key.key_hash,
        previous_hash=key.previous_hash,
        previous_until=key.previous_until,
        revoked_at=key.revoked_at,
        expires_at=key.expires_at,
        project_name=project.name,
        project_is_active=project.status == "active",
        tenant_is_active=tenant.status == "active",
    )
