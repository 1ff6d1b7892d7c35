"""Admin keys: like tenants' keys, and never taken for one."""

import secrets
from datetime import datetime, timedelta

import pytest
from sqlalchemy import select

from loraplex.tenants import admin_keys, api_keys, stored_keys
from loraplex.tenants.admin_keys import AdminPrincipal
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.db import Database
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.errors import (
    KeyExpired,
    KeyMalformed,
    KeyNotFound,
    KeyRevoked,
    KeyUnknown,
    ValueRefused,
)
from loraplex.tenants.key_text import MintedKey
from loraplex.tenants.tables import AdminKey

PEPPER = b"pepper" * 8


async def mint(
    database: Database, now: datetime, expires_at: datetime | None = None, label: str = "ops"
) -> MintedKey:
    async with database.session() as session:
        return await admin_keys.mint(session, label, PEPPER, now, secrets.token_bytes, expires_at)


async def verify(
    database: Database, text: str, now: datetime, pepper: bytes = PEPPER
) -> AdminPrincipal:
    async with database.reader() as session:
        return await admin_keys.verify(session, text, pepper, now)


async def test_an_admin_key_authenticates_its_operator(database: Database, now: datetime) -> None:
    key = await mint(database, now)
    assert key.text.startswith("lpxadm_")
    assert await verify(database, key.text, now) == AdminPrincipal(key.key_id, "ops")


async def test_only_its_keyed_hash_is_stored(database: Database, now: datetime) -> None:
    key = await mint(database, now)
    async with database.reader() as session:
        row = (await session.scalars(select(AdminKey))).one()
    assert key.text.split("_")[2] not in str(vars(row))
    with pytest.raises(KeyUnknown):
        await verify(database, key.text, now, pepper=b"another" * 8)


async def test_keys_of_tenants_and_operators_do_not_stand_for_each_other(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    operator = await mint(database, now)
    async with database.session() as session:
        tenant = await api_keys.mint(session, acme, "", PEPPER, now, secrets.token_bytes)
    with pytest.raises(KeyMalformed, match="lpxadm_"):
        await verify(database, tenant.text, now)
    async with database.reader() as session:
        with pytest.raises(KeyMalformed):
            await stored_keys.verify(session, operator.text, PEPPER, now)


async def test_a_revoked_and_an_expired_key_are_refused_as_such(
    database: Database, now: datetime
) -> None:
    revoked = await mint(database, now)
    expiring = await mint(database, now, now + timedelta(hours=1))
    async with database.session() as session:
        await admin_keys.revoke(session, Act(CLI, now), revoked.key_id)
        await admin_keys.revoke(session, Act(CLI, now + timedelta(hours=1)), revoked.key_id)
    with pytest.raises(KeyRevoked):
        await verify(database, revoked.text, now)
    with pytest.raises(KeyExpired):
        await verify(database, expiring.text, now + timedelta(hours=1))
    async with database.reader() as session:
        listed = await admin_keys.list_keys(session)
    assert {key.key_id: key.revoked_at for key in listed} == {
        revoked.key_id: now,
        expiring.key_id: None,
    }


async def test_a_derived_key_is_the_same_at_each_start_until_it_is_revoked(
    database: Database, now: datetime
) -> None:
    async with database.session() as session:
        first = await admin_keys.derive(session, "serve", PEPPER, now)
        assert await admin_keys.derive(session, "serve", PEPPER, now) == first
        assert (await admin_keys.derive(session, "else", PEPPER, now)).text != first.text
    assert (await verify(database, first.text, now)).label == "serve"
    async with database.session() as session:
        await admin_keys.revoke(session, Act(CLI, now), first.key_id)
        with pytest.raises(KeyRevoked):
            await admin_keys.derive(session, "serve", PEPPER, now)


async def test_what_cannot_be_is_refused(database: Database, now: datetime) -> None:
    with pytest.raises(ValueRefused, match="past"):
        await mint(database, now, now)
    with pytest.raises(ValueRefused, match="label"):
        await mint(database, now, label="x" * 101)
    async with database.session() as session:
        with pytest.raises(KeyNotFound):
            await admin_keys.revoke(session, Act(CLI, now), "nobody")
