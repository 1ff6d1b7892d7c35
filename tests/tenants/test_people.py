"""People, their passwords, their roles, and the sessions that end with them."""

import asyncio
import secrets
from datetime import datetime, timedelta

import pytest
from argon2 import PasswordHasher

from loraplex.tenants import admin_keys, console_sessions, memberships, people
from loraplex.tenants.audit import CLI, Act, AuditFilter, find_events
from loraplex.tenants.console_sessions import IDLE, LONGEST, SessionOwner, SignedIn
from loraplex.tenants.db import Database
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.errors import (
    LastOwner,
    MembershipNotFound,
    PasswordsBusy,
    PersonExists,
    PersonNotFound,
    SignInRefused,
    ValueRefused,
)
from loraplex.tenants.passwords import Passwords
from loraplex.tenants.people import PersonRecord, Recognised

CHEAP = Passwords(PasswordHasher(time_cost=1, memory_cost=64, parallelism=1))
PASSWORD = "correct horse battery"


async def add(
    database: Database,
    now: datetime,
    email: str,
    role: str | None = None,
    tenant: str | None = None,
) -> PersonRecord:
    act = Act(CLI, now)
    async with database.session() as session:
        person = await people.add(session, act, email, "", secrets.token_bytes)
        if role is not None:
            await memberships.grant(session, act, person.id, role, tenant, secrets.token_bytes)
        return await people.get(session, person.id)


async def set_password(database: Database, now: datetime, person_id: str, text: str) -> None:
    hashed = await CHEAP.hash(text)
    async with database.session() as session:
        await people.set_password(session, Act(CLI, now), person_id, hashed)


async def recognised(
    database: Database, passwords: Passwords, email: str, password: str
) -> Recognised:
    async with database.reader() as session:
        owner = await people.password_owner(session, email)
    return await people.recognise(owner, passwords, password)


async def sign_in(database: Database, now: datetime, owner: SessionOwner) -> str:
    async with database.session() as session:
        return await console_sessions.start(session, owner, "Firefox", now, secrets.token_bytes)


async def find(database: Database, cookie: str, now: datetime) -> SignedIn | None:
    async with database.reader() as session:
        return await console_sessions.find(session, cookie, now)


async def test_an_address_is_one_person_however_it_is_written(
    database: Database, now: datetime
) -> None:
    await add(database, now, "Ada@Example.org ")
    with pytest.raises(PersonExists, match=r"ada@example\.org"):
        await add(database, now, "ada@example.org")
    async with database.reader() as session:
        assert (await people.named(session, "ADA@example.ORG")).email == "ada@example.org"


@pytest.mark.parametrize("email", ["", "ada", "ada@", "@x.org", "a@b", "a b@x.org", "a@b@x.org"])
async def test_what_is_no_address_is_refused(email: str, database: Database, now: datetime) -> None:
    with pytest.raises(ValueRefused, match="e-mail") as caught:
        await add(database, now, email)
    assert caught.value.field == "email"


async def test_only_the_right_password_of_an_active_person_is_recognised(
    database: Database, now: datetime
) -> None:
    ada = await add(database, now, "ada@example.org")
    await add(database, now, "no-password@example.org")
    await set_password(database, now, ada.id, PASSWORD)

    async def recognise(email: str, password: str) -> str:
        return (await recognised(database, CHEAP, email, password)).person_id

    assert await recognise("Ada@example.org", PASSWORD) == ada.id
    told = set()
    for email, password in (
        ("ada@example.org", PASSWORD + "!"),
        ("ada@example.org", "x" * 2000),
        ("no-password@example.org", ""),
        ("nobody@example.org", PASSWORD),
    ):
        with pytest.raises(SignInRefused) as caught:
            await recognise(email, password)
        told.add(str(caught.value))
    async with database.session() as session:
        await people.set_status(session, Act(CLI, now), ada.id, "disabled")
    with pytest.raises(SignInRefused) as caught:
        await recognise("ada@example.org", PASSWORD)
    assert told == {str(caught.value)}, "the reasons must not be told apart"


async def test_an_unknown_address_costs_as_many_hashes_as_a_known_one(
    database: Database, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = await add(database, now, "ada@example.org")
    await set_password(database, now, ada.id, PASSWORD)
    calls = []
    for name in ("hash", "verify"):
        monkeypatch.setattr(PasswordHasher, name, lambda *_: calls.append(1) or "")
    for email in ("ada@example.org", "nobody@example.org"):
        calls.clear()
        with pytest.raises(SignInRefused):
            await recognised(database, CHEAP, email, "wrong password")
        assert len(calls) == 1, email


async def test_a_password_is_hashed_again_at_a_sign_in_once_the_parameters_changed(
    database: Database, now: datetime
) -> None:
    ada = await add(database, now, "ada@example.org")
    await set_password(database, now, ada.id, PASSWORD)
    dearer = Passwords(PasswordHasher(time_cost=2, memory_cost=64, parallelism=1))
    for is_first in (True, False):
        found = await recognised(database, dearer, "ada@example.org", PASSWORD)
        async with database.session() as session:
            await people.note_sign_in(session, found, now)
        assert (found.new_hash is not None) == is_first


async def test_a_sign_in_that_a_change_of_the_password_overtakes_is_refused(
    database: Database, now: datetime
) -> None:
    ada = await add(database, now, "ada@example.org")
    await set_password(database, now, ada.id, PASSWORD)
    found = await recognised(database, CHEAP, "ada@example.org", PASSWORD)
    await set_password(database, now, ada.id, "another long password")
    async with database.session() as session:
        with pytest.raises(SignInRefused):
            await people.note_sign_in(session, found, now)


async def test_only_so_many_passwords_wait_for_their_turn() -> None:
    passwords = Passwords(CHEAP.hasher, asyncio.Semaphore(0), asyncio.Semaphore(1))
    waiting = asyncio.create_task(passwords.is_right(PASSWORD, None))
    await asyncio.sleep(0)  # one step: it waits for its turn
    with pytest.raises(PasswordsBusy):
        await passwords.hash(PASSWORD)
    passwords.turns.release()
    assert not await waiting
    await passwords.hash(PASSWORD)


@pytest.mark.parametrize("password", ["short", "x" * 1001])
async def test_a_password_that_nobody_should_have_is_refused(password: str) -> None:
    with pytest.raises(ValueRefused, match="12 to 1000"):
        await CHEAP.hash(password)


async def test_the_last_owner_cannot_be_removed_by_any_way(
    database: Database, now: datetime
) -> None:
    act = Act(CLI, now)
    ada = await add(database, now, "ada@example.org", "owner")
    async with database.session() as session:
        with pytest.raises(LastOwner):
            await people.set_status(session, act, ada.id, "disabled")
        with pytest.raises(LastOwner):
            await memberships.revoke(session, act, ada.id, None)
        with pytest.raises(LastOwner):
            await memberships.grant(session, act, ada.id, "finance", None, secrets.token_bytes)
    bob = await add(database, now, "bob@example.org", "owner")
    async with database.session() as session:
        await people.set_status(session, act, bob.id, "disabled")
        with pytest.raises(LastOwner):  # one who cannot sign in owns nothing
            await memberships.revoke(session, act, ada.id, None)
        await people.set_status(session, act, bob.id, "active")
        await memberships.revoke(session, act, ada.id, None)


async def test_a_role_is_of_one_place_and_replaces_the_one_before(
    database: Database, now: datetime, acme: TenantRecord
) -> None:
    ada = await add(database, now, "ada@example.org", "developer", acme.id)
    act = Act(CLI, now)
    async with database.session() as session:
        await memberships.grant(session, act, ada.id, "tenant_admin", acme.id, secrets.token_bytes)
        await memberships.grant(session, act, ada.id, "finance", None, secrets.token_bytes)
        for role, place in (("owner", acme.id), ("developer", None), ("king", None)):
            with pytest.raises(ValueRefused, match="role"):
                await memberships.grant(session, act, ada.id, role, place, secrets.token_bytes)
        with pytest.raises(PersonNotFound):
            await memberships.grant(session, act, "psn_0", "owner", None, secrets.token_bytes)
    async with database.reader() as session:
        (found,) = await people.list_people(session, acme.id)
        events = await find_events(session, AuditFilter(action="member"), 10)
    assert [(one.tenant_name, one.role) for one in found.memberships] == [
        (None, "finance"),
        ("acme", "tenant_admin"),
    ]
    assert [event.detail for event in events if event.tenant_id == acme.id] == [
        {"role": {"from": "developer", "to": "tenant_admin"}},
        {"role": {"from": None, "to": "developer"}},
    ]


async def test_a_session_shows_what_its_person_may_do_now(
    database: Database, now: datetime, acme: TenantRecord
) -> None:
    ada = await add(database, now, "ada@example.org", "developer", acme.id)
    cookie = await sign_in(database, now, SessionOwner(person_id=ada.id))
    found = await find(database, cookie, now)
    assert found is not None
    assert found.may("adapters.write", acme.id)
    assert not found.may("adapters.write")
    assert not found.may("adapters.write", "tnt_other")
    assert not found.may("keys.write", acme.id)
    async with database.session() as session:
        act = Act(CLI, now)
        await memberships.grant(session, act, ada.id, "tenant_admin", acme.id, secrets.token_bytes)
    found = await find(database, cookie, now)
    assert found is not None
    assert found.may("keys.write", acme.id)


async def test_sessions_end_by_idleness_by_age_and_by_signing_out(
    database: Database, now: datetime
) -> None:
    ada = await add(database, now, "ada@example.org")
    owner = SessionOwner(person_id=ada.id)
    cookie = await sign_in(database, now, owner)
    assert await find(database, cookie, now + IDLE - timedelta(seconds=1)) is not None
    assert await find(database, cookie, now + IDLE) is None
    at = now
    while (at := at + IDLE / 2) < now + LONGEST:
        assert await find(database, cookie, at) is not None
        async with database.session() as session:
            await console_sessions.note_seen(session, cookie, at)
    assert await find(database, cookie, now + LONGEST) is None

    first, second, third = [await sign_in(database, at, owner) for _ in range(3)]
    found = await find(database, second, at)
    async with database.session() as session:
        assert found is not None
        await console_sessions.end(session, first)
        await console_sessions.end_one(session, owner, found.id)
        assert len(await console_sessions.list_of(session, owner, at)) == 1
    assert [await find(database, c, at) for c in (first, second)] == [None, None]
    assert await find(database, third, at) is not None
    async with database.session() as session:
        await console_sessions.end_everywhere(session, owner)
    assert await find(database, third, at) is None


async def test_whatever_shuts_a_person_out_ends_the_sessions_at_once(
    database: Database, now: datetime, acme: TenantRecord
) -> None:
    ada = await add(database, now, "ada@example.org", "developer", acme.id)
    act, owner = Act(CLI, now), SessionOwner(person_id=ada.id)

    cookie = await sign_in(database, now, owner)
    await set_password(database, now, ada.id, PASSWORD)
    assert await find(database, cookie, now) is None

    cookie = await sign_in(database, now, owner)
    async with database.session() as session:
        await memberships.revoke(session, act, ada.id, acme.id)
        with pytest.raises(MembershipNotFound):
            await memberships.revoke(session, act, ada.id, acme.id)
    assert await find(database, cookie, now) is None

    cookie = await sign_in(database, now, owner)
    async with database.session() as session:
        await people.set_status(session, act, ada.id, "disabled")
        await people.set_status(session, act, ada.id, "active")
    assert await find(database, cookie, now) is None


async def test_an_admin_keys_session_has_its_role_and_ends_with_it(
    database: Database, now: datetime
) -> None:
    pepper, later = b"p" * 32, now + timedelta(minutes=5)
    async with database.session() as session:
        key = await admin_keys.mint(session, "ops", pepper, now, secrets.token_bytes, later)
    owner = SessionOwner(admin_key_id=key.key_id)
    cookie = await sign_in(database, now, owner)
    found = await find(database, cookie, now)
    assert found is not None
    assert found.may("tenants.write")
    assert found.actor.id == key.key_id
    assert await find(database, cookie, later) is None
    async with database.session() as session:
        await admin_keys.revoke(session, Act(CLI, now), key.key_id)
    assert await find(database, cookie, now) is None


async def test_of_two_owners_who_remove_each_other_at_once_one_stays(
    database: Database, now: datetime
) -> None:
    act, both = Act(CLI, now), [await add(database, now, f"{n}@x.org", "owner") for n in "ab"]

    async def remove(person: PersonRecord) -> None:
        async with database.session() as session:
            await memberships.revoke(session, act, person.id, None)

    outcomes = await asyncio.gather(*map(remove, both), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes if outcome] == [LastOwner]


async def test_of_two_grants_of_one_role_at_once_one_membership_comes(
    database: Database, now: datetime, acme: TenantRecord
) -> None:
    ada, act = await add(database, now, "ada@example.org"), Act(CLI, now)

    async def grant(role: str) -> None:
        async with database.session() as session:
            await memberships.grant(session, act, ada.id, role, acme.id, secrets.token_bytes)

    await asyncio.gather(*map(grant, ("developer", "tenant_admin", "read_only")))
    async with database.reader() as session:
        assert len((await people.get(session, ada.id)).memberships) == 1


async def test_a_tenant_signs_nobody_out_who_belongs_elsewhere_too(
    database: Database, now: datetime, acme: TenantRecord
) -> None:
    act = Act(CLI, now)
    owner = await add(database, now, "olga@example.org", "owner", None)
    member = await add(database, now, "max@example.org", "developer", acme.id)
    async with database.session() as session:
        await memberships.grant(session, act, owner.id, "developer", acme.id, secrets.token_bytes)
    cookies = [
        await sign_in(database, now, SessionOwner(person_id=person.id))
        for person in (owner, member)
    ]
    async with database.session() as session:
        for person in (owner, member):
            await memberships.revoke(session, act, person.id, acme.id)
    elsewhere, nowhere = [await find(database, cookie, now) for cookie in cookies]
    assert elsewhere is not None
    assert not elsewhere.tenants
    assert nowhere is None
