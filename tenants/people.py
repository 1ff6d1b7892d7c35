"""People: who may sign in to the console. What they may do there is in `memberships`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants import audit, console_sessions
from loraplex.tenants.audit import Act
from loraplex.tenants.dialects import insert_unless_there
from loraplex.tenants.errors import PersonExists, PersonNotFound, SignInRefused, ValueRefused
from loraplex.tenants.ids import Entropy
from loraplex.tenants.memberships import Membership, keep_an_owner, memberships_of
from loraplex.tenants.passwords import Passwords
from loraplex.tenants.people_tables import MembershipRow, PersonRow
from loraplex.tenants.roles import Permission

MAX_EMAIL_CHARS, MAX_NAME_CHARS = 254, 100
_WRONG = "E-mail address or password is not right."


@dataclass(frozen=True, slots=True)
class PersonRecord:
    """A person as stored, without what opens the door."""

    id: str
    email: str
    name: str
    status: str
    """`active` or `disabled`."""
    has_password: bool
    oidc_issuer: str | None
    """Where the person signs in elsewhere; None before the first time."""
    created_at: datetime
    signed_in_at: datetime | None
    memberships: tuple[Membership, ...]

    @property
    def needed_to_change(self) -> Permission:
        """What it takes to change this person: whoever changes one of the platform's could become
        what that one is."""
        is_of_platform = any(membership.tenant_id is None for membership in self.memberships)
        return "owners.write" if is_of_platform else "people.write"


async def add(
    session: AsyncSession, act: Act, email: str, name: str, entropy: Entropy
) -> PersonRecord:
    """Add a person who may do nothing yet, and has no password.

    Raises:
        ValueRefused: address or name cannot be.
        PersonExists: somebody has the address.
    """
    email = checked_email(email)
    insert = insert_unless_there(
        session,
        PersonRow,
        "email",
        id=f"psn_{entropy(16).hex()}",  # tells no tenant since when others know the person
        email=email,
        name=_checked_name(name),
        status="active",
        created_at=act.at,
    )
    row = await session.scalar(insert.returning(PersonRow))
    if row is None:
        raise PersonExists(f"Somebody has the e-mail address {email} already.")
    await audit.append(session, act, None, "person.add", row.id)
    return _record(row, ())


async def get(session: AsyncSession, person_id: str) -> PersonRecord:
    """Return the person of this id. Raises PersonNotFound."""
    return await _get(session, PersonRow.id == person_id, person_id)


async def get_by_email(session: AsyncSession, email: str) -> PersonRecord:
    """Return the person of this address. Raises PersonNotFound."""
    return await _get(session, PersonRow.email == email.strip().lower(), email)


async def named(session: AsyncSession, id_or_email: str) -> PersonRecord:
    """Return the person of this id or address, whichever it is. Raises PersonNotFound."""
    find = get_by_email if "@" in id_or_email else get
    return await find(session, id_or_email)


async def list_people(session: AsyncSession, tenant_id: str | None = None) -> list[PersonRecord]:
    """Return all people, or those of one tenant, by address."""
    query = select(PersonRow).order_by(PersonRow.email)
    if tenant_id is not None:
        inside = (MembershipRow.person_id == PersonRow.id) & (MembershipRow.tenant_id == tenant_id)
        query = query.where(exists().where(inside))
    rows = (await session.scalars(query)).all()
    held = await memberships_of(session, [row.id for row in rows])
    return [_record(row, held.get(row.id, ())) for row in rows]


async def addresses_of(session: AsyncSession, person_ids: Sequence[str]) -> dict[str, str]:
    """Return e-mail addresses by id, of those who are there."""
    query = select(PersonRow.id, PersonRow.email).where(PersonRow.id.in_(person_ids))
    return {row.id: row.email for row in await session.execute(query)}


async def set_status(session: AsyncSession, act: Act, person_id: str, status: str) -> PersonRecord:
    """Disable a person, whose sessions end at once, or enable one again.

    Raises:
        PersonNotFound: there is none.
        LastOwner: nobody else owns the platform.
    """
    assert status in ("active", "disabled")
    if status == "disabled":
        await keep_an_owner(session, without_person=person_id)
    row = await _locked(session, person_id)
    if row.status != status:
        row.status = status
        verb = "disable" if status == "disabled" else "enable"
        await audit.append(session, act, None, f"person.{verb}", person_id)
    if status == "disabled":
        await console_sessions.end_all(session, person_id)
    await session.flush()
    return await get(session, person_id)


async def unlink(session: AsyncSession, act: Act, person_id: str) -> PersonRecord:
    """Forget by which issuer and under which name there a person signs in, whose sessions end; the
    next identity whose verified address is theirs is linked. No effect if nothing is linked.

    Raises:
        PersonNotFound: there is none.
    """
    row = await _locked(session, person_id)
    if row.oidc_subject is not None:
        detail = {"issuer": row.oidc_issuer}
        row.oidc_issuer = row.oidc_subject = None
        await console_sessions.end_all(session, person_id)
        await audit.append(session, act, None, "person.unlink", person_id, detail)
        await session.flush()
    return await get(session, person_id)


async def set_password(
    session: AsyncSession, act: Act, person_id: str, password_hash: str
) -> PersonRecord:
    """Give a person a password, by its hash; all sessions of the person end.

    Raises:
        PersonNotFound: there is none.
    """
    row = await _locked(session, person_id)
    row.password_hash = password_hash
    await console_sessions.end_all(session, person_id)
    await audit.append(session, act, None, "person.password", person_id)
    await session.flush()
    return await get(session, person_id)


@dataclass(frozen=True, slots=True)
class PasswordOwner:
    """Whose password is to be compared; of an unknown address it is nobody's."""

    person_id: str | None
    password_hash: str | None
    """None where no password opens: none is set, or the person is disabled."""


@dataclass(frozen=True, slots=True)
class Recognised:
    """Whose address and password they are; nothing is written yet."""

    person_id: str
    password_hash: str
    """As stored when it was compared."""
    new_hash: str | None
    """Of the same password, where the stored one was made with other parameters."""


async def password_owner(session: AsyncSession, email: str) -> PasswordOwner:
    """Return what a password of this address is compared with by `recognise`."""
    row = await session.scalar(select(PersonRow).where(PersonRow.email == email.strip().lower()))
    if row is None:
        return PasswordOwner(None, None)
    return PasswordOwner(row.id, row.password_hash if row.status == "active" else None)


async def recognise(owner: PasswordOwner, passwords: Passwords, password: str) -> Recognised:
    """Compare a password, outside of any transaction: others wait as well, and a connection that
    is held meanwhile is one less for all. It takes as long for unknown addresses.

    Raises:
        SignInRefused: it is not the owner's; which of the reasons it is remains untold.
        PasswordsBusy: too many wait already.
    """
    stored = owner.password_hash
    is_right = await passwords.is_right(password, stored)
    if not is_right or owner.person_id is None or stored is None:
        raise SignInRefused(_WRONG)
    outdated = passwords.is_outdated(stored)
    return Recognised(owner.person_id, stored, await passwords.hash(password) if outdated else None)


async def note_sign_in(session: AsyncSession, recognised: Recognised, now: datetime) -> None:
    """Write that somebody signed in by password.

    Raises:
        SignInRefused: the password or the person's status changed meanwhile.
    """
    unchanged = (
        update(PersonRow)
        .where(
            PersonRow.id == recognised.person_id,
            PersonRow.status == "active",
            PersonRow.password_hash == recognised.password_hash,
        )
        .values(
            signed_in_at=now,
            password_hash=func.coalesce(recognised.new_hash, PersonRow.password_hash),
        )
        .returning(PersonRow.id)
    )
    if await session.scalar(unchanged) is None:
        raise SignInRefused(_WRONG)


def checked_email(email: str) -> str:
    """Return an address as it is stored. Raises ValueRefused where it cannot be one."""
    email = email.strip().lower()
    name, _, domain = email.rpartition("@")
    plain = email.isprintable() and not any(sign in email for sign in " ,;<>\"'")
    if not (name and "@" not in name and "." in domain.strip(".") and plain):
        raise ValueRefused(f"{email[:60]!r} is not an e-mail address.", "email")
    if len(email) > MAX_EMAIL_CHARS:
        raise ValueRefused(f"The address has more than {MAX_EMAIL_CHARS} characters.", "email")
    return email


def _checked_name(name: str) -> str:
    name = name.strip()
    if len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise ValueRefused(
            f"The name must be printable, with at most {MAX_NAME_CHARS} characters.", "name"
        )
    return name


async def _locked(session: AsyncSession, person_id: str) -> PersonRow:
    row = await session.get(PersonRow, person_id, with_for_update=True)
    if row is None:
        raise PersonNotFound(f"There is no person {person_id[:60]!r}.")
    return row


async def _get(session: AsyncSession, condition: ColumnElement[bool], asked: str) -> PersonRecord:
    row = await session.scalar(select(PersonRow).where(condition))
    if row is None:
        raise PersonNotFound(f"There is no person {asked[:60]!r}.")
    return _record(row, (await memberships_of(session, [row.id])).get(row.id, ()))


def _record(row: PersonRow, held: tuple[Membership, ...]) -> PersonRecord:
    return PersonRecord(
        id=row.id,
        email=row.email,
        name=row.name,
        status=row.status,
        has_password=row.password_hash is not None,
        oidc_issuer=row.oidc_issuer,
        created_at=row.created_at,
        signed_in_at=row.signed_in_at,
        memberships=held,
    )
