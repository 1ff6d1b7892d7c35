"""What people may do: at most one role on the platform, and one in each tenant."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import exists, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants import audit, console_sessions
from loraplex.tenants.audit import Act
from loraplex.tenants.errors import LastOwner, MembershipNotFound, PersonNotFound, ValueRefused
from loraplex.tenants.ids import Entropy, new_id
from loraplex.tenants.people_tables import MembershipRow, PersonRow
from loraplex.tenants.roles import PLATFORM_GRANTS, TENANT_GRANTS, Permission
from loraplex.tenants.tables import Tenant


@dataclass(frozen=True, slots=True)
class Membership:
    """A role that a person has somewhere."""

    id: str
    person_id: str
    tenant_id: str | None
    """None for the platform's own roles."""
    tenant_name: str | None
    role: str
    is_by_rule: bool
    """True if it is as an issuer's word says, at each sign-in."""
    created_at: datetime


async def memberships_of(
    session: AsyncSession, person_ids: Sequence[str]
) -> dict[str, tuple[Membership, ...]]:
    """Return what people may do, by their ids: the platform's role first, then by tenant."""
    rows = await session.execute(
        select(MembershipRow, Tenant.name)
        .outerjoin(Tenant, Tenant.id == MembershipRow.tenant_id)
        .where(MembershipRow.person_id.in_(person_ids))
    )
    held: dict[str, list[Membership]] = {}
    for row, tenant_name in rows:
        held.setdefault(row.person_id, []).append(_membership(row, tenant_name))
    return {
        person: tuple(sorted(found, key=lambda one: one.tenant_name or ""))
        for person, found in held.items()
    }


async def grant(
    session: AsyncSession,
    act: Act,
    person_id: str,
    role: str,
    tenant_id: str | None,
    entropy: Entropy,
    *,
    is_by_rule: bool = False,
) -> None:
    """Give a person a role on the platform (without a tenant) or in a tenant, instead of any that
    the person had there. Sessions go on, with what the new role allows. What was given by hand no
    rule takes back.

    Raises:
        PersonNotFound: there is none.
        ValueRefused: there is no such role there.
        LastOwner: nobody else owns the platform.
    """
    grants = PLATFORM_GRANTS if tenant_id is None else TENANT_GRANTS
    if role not in grants:
        raise ValueRefused(f"role must be one of {', '.join(grants)}, not {role[:40]!r}.", "role")
    if tenant_id is None and role != "owner" and not is_by_rule:  # no rule is about owners
        await keep_an_owner(session, without_person=person_id)
    row = await _locked(session, person_id, tenant_id)
    if row is not None and row.role == role:
        row.is_by_rule = is_by_rule
        await session.flush()
        return
    before = None if row is None else row.role
    if row is None:
        row = MembershipRow(
            id=new_id("mbr", act.at, entropy),
            person_id=person_id,
            tenant_id=tenant_id,
            role=role,
            is_by_rule=is_by_rule,
            created_at=act.at,
        )
        session.add(row)
    row.role, row.is_by_rule = role, is_by_rule
    detail = {"role": {"from": before, "to": role}}
    await audit.append(session, act, tenant_id, "member.grant", person_id, detail)
    await session.flush()


async def revoke(
    session: AsyncSession,
    act: Act,
    person_id: str,
    tenant_id: str | None,
    *,
    is_by_rule: bool = False,
) -> None:
    """Take a person's role on the platform or in a tenant away; all sessions of the person end if
    it was the platform's, or the last one: no tenant signs out whoever belongs elsewhere, too.

    Raises:
        PersonNotFound: there is none.
        MembershipNotFound: the person has no role there.
        LastOwner: nobody else owns the platform.
    """
    if tenant_id is None and not is_by_rule:
        await keep_an_owner(session, without_person=person_id)
    row = await _locked(session, person_id, tenant_id)
    if row is None:
        raise MembershipNotFound(f"The person {person_id[:60]!r} has no role there.")
    detail = {"role": {"from": row.role, "to": None}}
    await audit.append(session, act, tenant_id, "member.revoke", person_id, detail)
    await session.delete(row)
    await session.flush()
    left = exists().where(MembershipRow.person_id == person_id)
    if tenant_id is None or not await session.scalar(select(left)):
        await console_sessions.end_all(session, person_id)


def needed_to_grant(tenant_id: str | None) -> Permission:
    """What it takes to give or take roles there."""
    return "owners.write" if tenant_id is None else "people.write"


async def keep_an_owner(session: AsyncSession, without_person: str) -> None:
    """See that the platform has an owner without this person, until the transaction ends.

    The owners' rows are locked in one order: of two owners that remove each other, one stays.

    Raises:
        LastOwner: the person is the only one.
    """
    owners = (
        await session.scalars(
            select(PersonRow.id)
            .join(MembershipRow, MembershipRow.person_id == PersonRow.id)
            .where(
                PersonRow.status == "active",
                MembershipRow.role == "owner",
                MembershipRow.tenant_id.is_(None),
            )
            .order_by(PersonRow.id)
            .with_for_update()
        )
    ).all()
    if list(owners) == [without_person]:
        raise LastOwner(
            "This person is the only one who owns the platform; make somebody else owner first."
        )


async def _locked(
    session: AsyncSession, person_id: str, tenant_id: str | None
) -> MembershipRow | None:
    """Return the person's role there; the person's row is locked, so that two roles cannot be."""
    if await session.get(PersonRow, person_id, with_for_update=True) is None:
        raise PersonNotFound(f"There is no person {person_id[:60]!r}.")
    return await session.scalar(
        select(MembershipRow).where(
            MembershipRow.person_id == person_id, MembershipRow.tenant_id == tenant_id
        )
    )


def _membership(row: MembershipRow, tenant_name: str | None) -> Membership:
    return Membership(
        id=row.id,
        person_id=row.person_id,
        tenant_id=row.tenant_id,
        tenant_name=tenant_name,
        role=row.role,
        is_by_rule=row.is_by_rule,
        created_at=row.created_at,
    )
