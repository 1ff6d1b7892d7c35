"""A tenant's members, as the tenant itself manages them."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants import memberships, people
from loraplex.tenants.errors import ExceedsParent, MembershipNotFound, PersonNotFound
from loraplex.tenants.grantors import check_unlimited
from loraplex.tenants.ids import Entropy
from loraplex.tenants.key_scopes import Grantor, check_within
from loraplex.tenants.roles import TENANT_GRANTS


@dataclass(frozen=True, slots=True)
class Member:
    """A person in a tenant. Name, status and what the person does elsewhere are not its to see: who
    adds an address learns nothing of whether, or since when, others know it."""

    person_id: str
    email: str
    role: str
    since: datetime


async def add(
    session: AsyncSession,
    grantor: Grantor,
    tenant_id: str,
    email: str,
    role: str,
    entropy: Entropy,
) -> Member:
    """Give whoever has the address a role in the tenant; somebody unknown is added, without a
    password: the platform, or an issuer that verified the address, lets them in.

    Raises:
        ValueRefused: it is no address, or there is no such role.
        ExceedsParent: the role, or the one that the person has, may more than who gives it.
    """
    await _check_may_give(session, grantor, role)
    try:
        person = await people.get_by_email(session, people.checked_email(email))
    except PersonNotFound:
        person = await people.add(session, grantor.act, email, "", entropy)
    held = [one.role for one in person.memberships if one.tenant_id == tenant_id]
    await _check_may_give(session, grantor, tenant_id, role, *held)
    await memberships.grant(session, grantor.act, person.id, role, tenant_id, entropy)
    return await get(session, tenant_id, person.id)


async def list_members(session: AsyncSession, tenant_id: str) -> list[Member]:
    """Return the members, by address."""
    found = await people.list_people(session, tenant_id)
    return [
        Member(person.id, person.email, held.role, held.created_at)
        for person in found
        for held in person.memberships
        if held.tenant_id == tenant_id
    ]


async def get(session: AsyncSession, tenant_id: str, person_id: str) -> Member:
    """Return one member. Raises MembershipNotFound."""
    for member in await list_members(session, tenant_id):
        if member.person_id == person_id:
            return member
    raise MembershipNotFound(f"The tenant has no member {person_id[:60]!r}.")


async def change_role(
    session: AsyncSession,
    grantor: Grantor,
    tenant_id: str,
    person_id: str,
    role: str,
    entropy: Entropy,
) -> Member:
    """Give a member another role.

    Raises:
        MembershipNotFound: the tenant has no such member.
        ValueRefused: there is no such role.
        ExceedsParent: either role may more than who gives it.
    """
    member = await get(session, tenant_id, person_id)
    await _check_may_give(session, grantor, tenant_id, role, member.role)
    await memberships.grant(session, grantor.act, person_id, role, tenant_id, entropy)
    return await get(session, tenant_id, person_id)


async def remove(session: AsyncSession, grantor: Grantor, tenant_id: str, person_id: str) -> None:
    """Take a member's role away.

    Raises:
        MembershipNotFound: the tenant has no such member.
        ExceedsParent: the role may more than who takes it away.
    """
    member = await get(session, tenant_id, person_id)
    _check_roles(grantor, member.role)
    await memberships.revoke(session, grantor.act, person_id, tenant_id)


async def _check_may_give(
    session: AsyncSession, grantor: Grantor, tenant_id: str, *held: str
) -> None:
    """Refuse what would let a person do what the giver cannot: people have no lists of models or
    addresses, no end and no limits, so a key that has any gives no roles."""
    _check_roles(grantor, *held)
    for field in ("models", "addresses", "expires_at"):
        if getattr(grantor, field) is not None:
            raise ExceedsParent(
                f"role: your key is narrowed by its {field}, as no person is; use another key.",
                "role",
            )
    await check_unlimited(session, grantor, tenant_id)


def _check_roles(grantor: Grantor, *held: str) -> None:
    """Refuse roles that may more than the giver; unknown ones are for `memberships` to refuse."""
    for role, granted in TENANT_GRANTS.items():
        if role in held:
            check_within("role", granted, grantor.permissions, "your key")
