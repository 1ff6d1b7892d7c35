"""Who somebody is that an issuer vouches for: pinned to a person at the first sign-in; and which
roles that gives, as long as it does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants import audit, directory, memberships, people
from loraplex.tenants.audit import Act, Actor
from loraplex.tenants.errors import SignInRefused, TenantNotFound
from loraplex.tenants.ids import Entropy
from loraplex.tenants.people_tables import PersonRow

MAX_SUBJECT_CHARS = 255


@dataclass(frozen=True, slots=True)
class Identity:
    """What an issuer says of somebody."""

    issuer: str
    subject: str
    """The issuer's own name for them, which never becomes somebody else's."""
    verified_email: str | None
    """None where the issuer does not say that the address is theirs."""
    name: str


@dataclass(frozen=True, slots=True)
class Role:
    """What a rule gives somebody of whom the issuer says what it asks for."""

    role: str
    tenant: str | None
    """Its name; None for the platform's roles."""


async def recognise(
    session: AsyncSession, act: Act, identity: Identity, roles: Sequence[Role], entropy: Entropy
) -> str:
    """Return the id of the person; whoever is not known is added, if there are roles for them.

    A known address is linked once, to the first subject that the issuer verified it for. At each
    sign-in `roles` are given where the person has none by hand, and what rules gave before and
    give no more is taken back. So it is the same whether somebody added the address beforehand.

    Raises:
        SignInRefused: nobody known and no role, a disabled person, an address that cannot be
            believed or is another subject's, or a subject that cannot be kept.
    """
    _check_subject(identity.subject)
    places = await _places(session, roles)
    row = await session.scalar(
        select(PersonRow)
        .where(PersonRow.oidc_issuer == identity.issuer, PersonRow.oidc_subject == identity.subject)
        .with_for_update()
    )
    if row is None:
        row = await _first_time(session, act, identity, entropy, may_come=bool(places))
    if row.status != "active":
        raise SignInRefused("This person may not sign in any more; ask whoever runs the platform.")
    row.signed_in_at = act.at
    await session.flush()
    await _follow_rules(session, act, row.id, places, entropy)
    return row.id


def _check_subject(subject: str) -> None:
    """OpenID Connect Core 1.0, section 2: at most 255 ASCII characters."""
    if not 1 <= len(subject) <= MAX_SUBJECT_CHARS or not subject.isascii() or "\0" in subject:
        raise SignInRefused(
            f"The issuer's name for you, its sub, has {len(subject)} characters; it must have 1 to "
            f"{MAX_SUBJECT_CHARS}, all of them ASCII. Whoever runs the issuer can mend that."
        )


async def _first_time(
    session: AsyncSession, act: Act, identity: Identity, entropy: Entropy, *, may_come: bool
) -> PersonRow:
    if identity.verified_email is None:
        raise SignInRefused(
            "The issuer does not say that your e-mail address is verified, so it cannot be told "
            "who you are here."
        )
    email = people.checked_email(identity.verified_email)
    row = await session.scalar(select(PersonRow).where(PersonRow.email == email).with_for_update())
    if row is None:
        if not may_come:
            raise SignInRefused(f"{email} is not known here; ask whoever runs the platform.")
        shown = "".join(c for c in identity.name if c.isprintable())[: people.MAX_NAME_CHARS]
        person = await people.add(session, act, email, shown, entropy)
        row = await session.get_one(PersonRow, person.id)
    if row.oidc_subject is not None:
        raise SignInRefused(
            f"{email} belongs to somebody who signs in by another identity of the issuer; ask "
            "whoever runs the platform."
        )
    row.oidc_issuer, row.oidc_subject = identity.issuer, identity.subject
    detail = {"issuer": identity.issuer}
    await audit.append(
        session, Act(Actor("person", row.id), act.at), None, "person.link", row.id, detail
    )
    return row


async def _places(session: AsyncSession, roles: Sequence[Role]) -> dict[str | None, str]:
    """The first role of each place: by a tenant's id, or None for the platform."""
    places: dict[str | None, str] = {}
    for role in roles:
        try:
            tenant = await directory.get_by_name(session, role.tenant) if role.tenant else None
        except TenantNotFound:
            continue
        places.setdefault(tenant.id if tenant else None, role.role)
    return places


async def _follow_rules(
    session: AsyncSession,
    act: Act,
    person_id: str,
    places: Mapping[str | None, str],
    entropy: Entropy,
) -> None:
    held = (await memberships.memberships_of(session, [person_id])).get(person_id, ())
    by_hand = {one.tenant_id for one in held if not one.is_by_rule}
    for one in held:
        if one.is_by_rule and one.tenant_id not in places:
            await memberships.revoke(session, act, person_id, one.tenant_id, is_by_rule=True)
    for place, role in places.items():
        if place not in by_hand:
            await memberships.grant(session, act, person_id, role, place, entropy, is_by_rule=True)
