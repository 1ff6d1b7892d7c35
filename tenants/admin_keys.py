"""Keys of the platform's operator: `lpxadm_<key id>_<secret><checksum>`, stored as a keyed hash.

They open the admin API and the console, and no tenant's routes; a tenant's key opens neither.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import cast, get_args

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants import audit, roles
from loraplex.tenants.api_keys import check_new_key
from loraplex.tenants.audit import Act
from loraplex.tenants.dialects import insert_unless_there
from loraplex.tenants.errors import KeyExpired, KeyNotFound, KeyRevoked, KeyUnknown, ValueRefused
from loraplex.tenants.ids import Entropy
from loraplex.tenants.key_text import MintedKey, derived_key, is_key, key_hash, parse, random_key
from loraplex.tenants.roles import PLATFORM_GRANTS, Permission, Permissions, PlatformRole
from loraplex.tenants.tables import AdminKey

PREFIX = "lpxadm"


@dataclass(frozen=True, slots=True)
class AdminPrincipal:
    """The operator that a request acts for, as its key says."""

    key_id: str
    label: str
    role: PlatformRole = "owner"

    @property
    def permissions(self) -> Permissions:
        """What it may do."""
        return PLATFORM_GRANTS[self.role]

    def check(self, needed: Permission) -> None:
        """Raises PermissionMissing unless it may do this."""
        roles.check(self.permissions, needed)


@dataclass(frozen=True, slots=True)
class AdminKeyRecord:
    """A stored admin key, as owners may see it."""

    key_id: str
    label: str
    role: PlatformRole
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None


async def verify(session: AsyncSession, text: str, pepper: bytes, now: datetime) -> AdminPrincipal:
    """Return whom the admin key `text` authenticates at the time `now`.

    Raises:
        KeyMalformed: no admin key of ours, or a typo; the database is not asked.
        KeyUnknown: no such key.
        KeyRevoked: it was revoked.
        KeyExpired: its time is over.
    """
    key = await session.get(AdminKey, parse(PREFIX, text))
    if key is None or not is_key(text, key.key_hash, pepper):
        raise KeyUnknown("The admin key is not known.")
    if key.revoked_at is not None:
        raise KeyRevoked(f"The admin key {key.id} was revoked.")
    if key.expires_at is not None and key.expires_at <= now:
        raise KeyExpired(f"The admin key {key.id} has expired.")
    return AdminPrincipal(key.id, key.label, cast("PlatformRole", key.role))


async def create(
    session: AsyncSession,
    act: Act,
    label: str,
    role: str,
    pepper: bytes,
    entropy: Entropy,
    expires_at: datetime | None = None,
) -> MintedKey:
    """Make an admin key, and tell it to the audit log; for those who have `owners.write`.

    Raises:
        ValueRefused: there is no such role, or as `mint` does.
    """
    if role not in get_args(PlatformRole):
        known = ", ".join(get_args(PlatformRole))
        raise ValueRefused(f"role: {role[:40]!r} is none of {known}.", "role")
    minted = await mint(session, label, pepper, act.at, entropy, expires_at)
    (await session.get_one(AdminKey, minted.key_id)).role = role
    await session.flush()
    detail = {"label": label, "role": role, "expires_at": expires_at and expires_at.isoformat()}
    await audit.append(session, act, None, "admin_key.create", minted.key_id, detail)
    return minted


async def mint(
    session: AsyncSession,
    label: str,
    pepper: bytes,
    now: datetime,
    entropy: Entropy,
    expires_at: datetime | None = None,
) -> MintedKey:
    """Make an owner's key of random bytes and store its hash; `create` is for people.

    Raises:
        ValueRefused: the label is too long, or the key would be expired from the start.
    """
    check_new_key(label, expires_at, now)
    minted = random_key(PREFIX, entropy)
    session.add(AdminKey(**_values(minted, label, pepper, now), expires_at=expires_at))
    await session.flush()
    return minted


async def derive(session: AsyncSession, purpose: str, pepper: bytes, now: datetime) -> MintedKey:
    """Return the one key of this purpose, which the secret determines; store it once.

    Such a key can be shown again at each start, though only its hash is stored.

    Raises:
        KeyRevoked: it was revoked, and stays so.
    """
    minted = derived_key(PREFIX, f"loraplex derived admin key\0{purpose}".encode(), pepper)
    values = _values(minted, purpose, pepper, now)
    await session.execute(insert_unless_there(session, AdminKey, "id", **values))
    if (await session.get_one(AdminKey, minted.key_id)).revoked_at is not None:
        raise KeyRevoked(f"The admin key {minted.key_id} was revoked.")
    return minted


async def list_keys(session: AsyncSession) -> list[AdminKeyRecord]:
    """Return all admin keys, oldest first."""
    rows = await session.scalars(select(AdminKey).order_by(AdminKey.created_at, AdminKey.id))
    return [record_of(row) for row in rows]


async def get_key(session: AsyncSession, key_id: str) -> AdminKeyRecord:
    """Return an admin key.

    Raises:
        KeyNotFound: there is no such key.
    """
    return record_of(await _get(session, key_id))


async def revoke(session: AsyncSession, act: Act, key_id: str) -> None:
    """Revoke an admin key; one that is revoked already keeps its time.

    Raises:
        KeyNotFound: there is no such key.
    """
    key = await _get(session, key_id)
    if key.revoked_at is None:
        key.revoked_at = act.at
        await session.flush()
        await audit.append(session, act, None, "admin_key.revoke", key.id, {"label": key.label})


def record_of(row: AdminKey) -> AdminKeyRecord:
    """Return what may be shown of a stored admin key."""
    return AdminKeyRecord(
        key_id=row.id,
        label=row.label,
        role=cast("PlatformRole", row.role),
        created_at=row.created_at,
        last_used_at=row.last_used_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )


async def _get(session: AsyncSession, key_id: str) -> AdminKey:
    key = await session.get(AdminKey, key_id)
    if key is None:
        raise KeyNotFound(f"There is no admin key {key_id[:60]!r}.")
    return key


def _values(minted: MintedKey, label: str, pepper: bytes, now: datetime) -> dict[str, object]:
    """Return the columns of a new key."""
    return {
        "id": minted.key_id,
        "label": label,
        "key_hash": key_hash(minted.text, pepper),
        "created_at": now,
    }
