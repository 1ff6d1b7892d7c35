"""API keys of tenants: `lpx_<key id>_<secret><checksum>`, stored as a keyed hash."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.dialects import insert_unless_there
from loraplex.tenants.directory import TenantRecord, own_limits
from loraplex.tenants.errors import (
    KeyExpired,
    KeyNotFound,
    KeyRevoked,
    KeyUnknown,
    TenantSuspended,
    ValueRefused,
)
from loraplex.tenants.ids import Entropy
from loraplex.tenants.key_text import MintedKey, derived_key, is_key, key_hash, parse, random_key
from loraplex.tenants.limits import TenantLimits
from loraplex.tenants.tables import AdminKey, ApiKey, Tenant

PREFIX = "lpx"
MAX_LABEL_CHARS = 100


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request acts for, as its key says."""

    tenant_id: str
    tenant_name: str
    key_id: str
    weight: float
    """The tenant's share of the machine, relative to other tenants."""
    limits: TenantLimits


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A stored key, as its owner may see it."""

    key_id: str
    label: str
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None


async def verify(session: AsyncSession, text: str, pepper: bytes, now: datetime) -> Principal:
    """Return whom the key `text` authenticates at the time `now`.

    Raises:
        KeyMalformed: no key of ours, or a typo; the database is not asked.
        KeyUnknown: no such key.
        KeyRevoked: it was revoked.
        KeyExpired: its time is over.
        TenantSuspended: its tenant is suspended.
    """
    key_id = parse(PREFIX, text)
    row = (
        await session.execute(
            select(ApiKey, Tenant)
            .join(Tenant, Tenant.id == ApiKey.tenant_id)
            .where(ApiKey.id == key_id)
        )
    ).one_or_none()
    # Whoever lacks the secret learns nothing of the key's state: the hash comes first.
    if row is None or not is_key(text, row.ApiKey.key_hash, pepper):
        raise KeyUnknown("The API key is not known.")
    key, tenant = row.ApiKey, row.Tenant
    if key.revoked_at is not None:
        raise KeyRevoked(f"The API key {key_id} was revoked.")
    if key.expires_at is not None and key.expires_at <= now:
        raise KeyExpired(f"The API key {key_id} has expired.")
    if tenant.status != "active":
        raise TenantSuspended(f"The tenant {tenant.name} is suspended.")
    return Principal(
        tenant_id=tenant.id,
        tenant_name=tenant.name,
        key_id=key.id,
        weight=tenant.weight,
        limits=own_limits(tenant),
    )


async def mint(
    session: AsyncSession,
    tenant: TenantRecord,
    label: str,
    pepper: bytes,
    now: datetime,
    entropy: Entropy,
    expires_at: datetime | None = None,
) -> MintedKey:
    """Make a key of random bytes and store its hash.

    Raises:
        ValueRefused: the label is too long, or the key would be expired from the start.
    """
    check_new_key(label, expires_at, now)
    minted = random_key(PREFIX, entropy)
    row = _values(minted, tenant, label, pepper, now)
    session.add(ApiKey(**row, expires_at=expires_at))
    await session.flush()
    return minted


async def derive(
    session: AsyncSession, tenant: TenantRecord, purpose: str, pepper: bytes, now: datetime
) -> MintedKey:
    """Return the one key of this tenant and purpose, which the secret determines; store it once.

    Such a key can be shown again at each start, though only its hash is stored.

    Raises:
        KeyRevoked: it was revoked, and stays so.
    """
    message = f"loraplex derived key\0{tenant.name}\0{purpose}".encode()
    minted = derived_key(PREFIX, message, pepper)
    values = _values(minted, tenant, purpose, pepper, now)
    await session.execute(insert_unless_there(session, ApiKey, "id", **values))
    if (await session.get_one(ApiKey, minted.key_id)).revoked_at is not None:
        raise KeyRevoked(f"The API key {minted.key_id} was revoked.")
    return minted


async def list_keys(session: AsyncSession, tenant_id: str) -> list[KeyRecord]:
    """Return the tenant's keys, oldest first."""
    rows = await session.scalars(
        select(ApiKey).where(ApiKey.tenant_id == tenant_id).order_by(ApiKey.created_at, ApiKey.id)
    )
    return [record_of(row) for row in rows]


async def revoke(session: AsyncSession, tenant_id: str, key_id: str, now: datetime) -> None:
    """Revoke a key of the tenant; a key that is revoked already keeps its time.

    Raises:
        KeyNotFound: the tenant has no such key.
    """
    key = await session.get(ApiKey, key_id, with_for_update=True)
    if key is None or key.tenant_id != tenant_id:
        raise KeyNotFound(f"The tenant has no key {key_id[:60]!r}.")
    if key.revoked_at is None:
        key.revoked_at = now
        await session.flush()


def record_of(row: ApiKey | AdminKey) -> KeyRecord:
    """Return what may be shown of a stored key."""
    return KeyRecord(
        key_id=row.id,
        label=row.label,
        created_at=row.created_at,
        last_used_at=row.last_used_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
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
        "label": label,
        "key_hash": key_hash(minted.text, pepper),
        "created_at": now,
    }
