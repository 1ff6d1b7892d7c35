"""API keys of tenants: `lpx_<key id>_<secret><checksum>`, stored as a keyed hash."""

from dataclasses import dataclass
from datetime import datetime
from typing import cast

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants import roles
from loraplex.tenants.audit import Act
from loraplex.tenants.dialects import insert_unless_there
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.errors import (
    AddressRefused,
    KeyNotFound,
    KeyRevoked,
    PermissionMissing,
    ValueRefused,
)
from loraplex.tenants.ids import Entropy
from loraplex.tenants.key_scopes import (
    Grantor,
    KeyScopes,
    Models,
    address_allowed,
    allows,
    networks_of,
    read_list,
)
from loraplex.tenants.key_text import MintedKey, derived_key, is_key, key_hash, random_key
from loraplex.tenants.limits import TenantLimits
from loraplex.tenants.periods import Calendar
from loraplex.tenants.projects import default_project_id
from loraplex.tenants.roles import Permission, Permissions, TenantRole
from loraplex.tenants.tables import ApiKey, Project

PREFIX = "lpx"
MAX_LABEL_CHARS = 100
ANY_SCOPES = KeyScopes()
_GIVING: Permissions = frozenset(("keys.write", "people.write"))


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request acts for, as its key says."""

    tenant_id: str
    tenant_name: str
    key_id: str
    weight: float
    """The tenant's share of the machine, relative to other tenants."""
    limits: TenantLimits
    project_id: str
    weight_version: int = 1
    """Of the weight and the tiers: the newest counts, whichever request brings it."""
    service_tiers: tuple[str, ...] = ("priority", "default", "flex")
    """That its requests may ask for."""
    time_zone: str = "UTC"
    """In which the tenant's months begin, from the month after it was set."""
    earlier_time_zones: str = ""
    scopes: KeyScopes = ANY_SCOPES
    project_models: Models = None
    expires_at: datetime | None = None
    by_previous_secret: bool = False
    """True where the secret before the last rotation opened, which others may know by now."""

    @property
    def calendar(self) -> Calendar:
        """The tenant's months."""
        return Calendar.parse(self.time_zone, self.earlier_time_zones)

    @property
    def permissions(self) -> Permissions:
        """What it may do. The secret before a rotation gives nothing away: no new secret of its own
        key, no other key, and no roles."""
        granted = self.scopes.granted
        return granted - _GIVING if self.by_previous_secret else granted

    def check(self, needed: Permission) -> None:
        """Raises PermissionMissing unless it may do this."""
        if needed in self.scopes.granted and needed not in self.permissions:
            raise PermissionMissing(
                needed, f"This needs the key's new secret: {needed} ended with its rotation."
            )
        roles.check(self.permissions, needed)

    def check_address(self, address: str | None) -> None:
        """Raises AddressRefused unless its requests may come from this address."""
        if not address_allowed(self.scopes.addresses, address):
            raise AddressRefused(
                f"The API key {self.key_id} is not for requests from {address or 'nowhere'}."
            )

    def may_call(self, name: str) -> bool:
        """True if key and project allow the model of this resolved name."""
        return allows(self.scopes.models, name) and allows(self.project_models, name)

    def as_grantor(self, act: Act) -> Grantor:
        """The bounds of what it can give to other keys: its own."""
        scopes = self.scopes
        return Grantor(
            act,
            self.permissions,
            scopes.models,
            scopes.addresses,
            self.expires_at,
            self.key_id,
        )


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A stored key, as its owner may see it."""

    key_id: str
    label: str
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None
    project_id: str
    project: str
    """Its name."""
    scopes: KeyScopes
    rotated_at: datetime | None
    previous_until: datetime | None
    """Until when the secret before the last rotation opens, too."""


async def mint(
    session: AsyncSession,
    tenant: TenantRecord,
    label: str,
    pepper: bytes,
    now: datetime,
    entropy: Entropy,
    expires_at: datetime | None = None,
) -> MintedKey:
    """Make a key of random bytes in the default project and store its hash; `key_changes.create`
    is for people, who say more of it.

    Raises:
        ValueRefused: the label is too long, or the key would be expired from the start.
    """
    check_new_key(label, expires_at, now)
    minted = random_key(PREFIX, entropy)
    row = _values(minted, tenant, label, pepper, now)
    session.add(ApiKey(**row, expires_at=expires_at))
    await session.flush()
    return minted


def derived(tenant_name: str, purpose: str, pepper: bytes) -> MintedKey:
    """Return the key that the secret determines for a tenant of this name; stores nothing."""
    message = f"loraplex derived key\0{tenant_name}\0{purpose}".encode()
    return derived_key(PREFIX, message, pepper)


async def derive(
    session: AsyncSession, tenant: TenantRecord, purpose: str, pepper: bytes, now: datetime
) -> MintedKey:
    """Return the one key of this tenant and purpose, which the secret determines; store it once.

    Such a key can be shown again at each start, though only its hash is stored.

    Raises:
        KeyRevoked: it was revoked or rotated, and stays so.
    """
    minted = derived(tenant.name, purpose, pepper)
    values = _values(minted, tenant, purpose, pepper, now)
    await session.execute(insert_unless_there(session, ApiKey, "id", **values))
    row = await session.get_one(ApiKey, minted.key_id)
    if row.revoked_at is not None or not is_key(minted.text, row.key_hash, pepper):
        raise KeyRevoked(f"The API key {minted.key_id} was revoked or rotated.")
    return minted


async def list_keys(
    session: AsyncSession, tenant_id: str, project_id: str | None = None
) -> list[KeyRecord]:
    """Return the tenant's keys, or those of one of its projects, oldest first."""
    query = _records(tenant_id).order_by(ApiKey.created_at, ApiKey.id)
    if project_id is not None:
        query = query.where(ApiKey.project_id == project_id)
    return [record_of(key, project) for key, project in await session.execute(query)]


async def get_key(session: AsyncSession, tenant_id: str, key_id: str) -> KeyRecord:
    """Return a key of the tenant.

    Raises:
        KeyNotFound: the tenant has no such key.
    """
    query = _records(tenant_id).where(ApiKey.id == key_id)
    found = (await session.execute(query)).one_or_none()
    if found is None:
        raise not_found(key_id)
    return record_of(*found)


def not_found(key_id: str) -> KeyNotFound:
    """What is told of another tenant's key, and of one that is nowhere."""
    return KeyNotFound(f"The tenant has no key {key_id[:60]!r}.")


def _records(tenant_id: str) -> "Select[ApiKey, str]":
    return (
        select(ApiKey, Project.name)
        .join(Project, Project.id == ApiKey.project_id)
        .where(ApiKey.tenant_id == tenant_id)
    )


def scopes_of(row: ApiKey) -> KeyScopes:
    """What is stored of a key's scopes."""
    addresses = read_list(row.addresses)
    return KeyScopes(
        role=cast("TenantRole", row.role),
        permissions=cast("tuple[Permission, ...] | None", read_list(row.permissions)),
        models=read_list(row.models),
        addresses=None if addresses is None else networks_of(addresses),
    )


def record_of(row: ApiKey, project: str) -> KeyRecord:
    """Return what may be shown of a stored key, and of the project of this name."""
    return KeyRecord(
        key_id=row.id,
        label=row.label,
        created_at=row.created_at,
        last_used_at=row.last_used_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        project_id=row.project_id,
        project=project,
        scopes=scopes_of(row),
        rotated_at=row.rotated_at,
        previous_until=row.previous_until,
    )


def check_new_key(label: str, expires_at: datetime | None, now: datetime) -> None:
    """Check what a person says of a new key.

    Raises:
        ValueRefused: the label cannot be stored, or the key would be expired from the start.
    """
    if len(label) > MAX_LABEL_CHARS:
        raise ValueRefused(f"The label has more than {MAX_LABEL_CHARS} characters.", "label")
    if "\0" in label:  # PostgreSQL has no text with it
        raise ValueRefused("The label must not hold U+0000.", "label")
    if expires_at is not None and expires_at <= now:
        raise ValueRefused(f"The key would expire in the past, at {expires_at}.", "expires_at")


def _values(
    minted: MintedKey, tenant: TenantRecord, label: str, pepper: bytes, now: datetime
) -> dict[str, object]:
    """Return the columns of a new key."""
    return {
        "id": minted.key_id,
        "tenant_id": tenant.id,
        "project_id": default_project_id(tenant.id),
        "label": label,
        "key_hash": key_hash(minted.text, pepper),
        "created_at": now,
    }
