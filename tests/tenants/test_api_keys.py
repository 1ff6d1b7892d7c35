"""API keys: their text, and whom they authenticate when."""

import re
import secrets
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from loraplex.tenants import api_keys, directory, key_changes, key_text, stored_keys
from loraplex.tenants.api_keys import Principal
from loraplex.tenants.audit import CLI, Act
from loraplex.tenants.db import Database
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.errors import (
    KeyExpired,
    KeyMalformed,
    KeyNotFound,
    KeyRefused,
    KeyRevoked,
    KeyUnknown,
    TenantSuspended,
    ValueRefused,
)
from loraplex.tenants.key_text import MintedKey
from loraplex.tenants.limits import TenantLimits
from loraplex.tenants.projects import default_project_id
from loraplex.tenants.tables import ApiKey

PEPPER = b"pepper" * 8
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SAMPLE = key_text.compose("lpx", bytes(range(12)), bytes(range(32))).text


async def mint(
    database: Database, tenant: TenantRecord, now: datetime, **more: object
) -> MintedKey:
    async with database.session() as session:
        return await api_keys.mint(
            session,
            tenant,
            "ci",
            PEPPER,
            now,
            secrets.token_bytes,
            **more,  # type: ignore[arg-type]  # values of several types
        )


async def verify(database: Database, text: str, now: datetime) -> Principal:
    async with database.reader() as session:
        return await stored_keys.verify(session, text, PEPPER, now)


async def test_a_key_authenticates_its_tenant(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    key = await mint(database, acme, now)
    assert await verify(database, key.text, now) == Principal(
        tenant_id=acme.id,
        tenant_name="acme",
        key_id=key.key_id,
        weight=1.0,
        limits=TenantLimits(),
        project_id=default_project_id(acme.id),
    )


async def test_the_key_itself_is_stored_nowhere(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    key = await mint(database, acme, now)
    async with database.reader() as session:
        row = (await session.scalars(select(ApiKey))).one()
    stored = " ".join(str(getattr(row, column.key)) for column in ApiKey.__table__.columns)
    assert key.text not in stored
    assert key.text.rpartition("_")[2] not in stored


def test_printing_a_new_key_does_not_show_it() -> None:
    assert SAMPLE not in repr(MintedKey("id", SAMPLE))


@given(data=st.data(), position=st.integers(0, len(SAMPLE) - 1))
def test_any_one_wrong_character_is_found_without_the_database(
    data: st.DataObject, position: int
) -> None:
    wrong = data.draw(st.sampled_from(ALPHABET.replace(SAMPLE[position], "")))
    with pytest.raises(KeyMalformed):
        key_text.parse("lpx", SAMPLE[:position] + wrong + SAMPLE[position + 1 :])


@given(position=st.integers(4, len(SAMPLE) - 2))
def test_two_characters_in_the_wrong_order_are_found(position: int) -> None:
    swapped = SAMPLE[:position] + SAMPLE[position + 1] + SAMPLE[position] + SAMPLE[position + 2 :]
    if swapped != SAMPLE:
        with pytest.raises(KeyMalformed):
            key_text.parse("lpx", swapped)


@given(st.text(max_size=90))
def test_arbitrary_text_is_malformed(text: str) -> None:
    with pytest.raises(KeyMalformed):
        key_text.parse("lpx", text)


@pytest.mark.parametrize("text", ["", SAMPLE + "\n", " " + SAMPLE, SAMPLE.upper(), "sk-" + SAMPLE])
def test_text_around_a_key_makes_it_malformed(text: str) -> None:
    with pytest.raises(KeyMalformed):
        key_text.parse("lpx", text)


async def test_a_well_formed_key_of_nobody_is_unknown(database: Database, now: datetime) -> None:
    with pytest.raises(KeyUnknown):
        await verify(database, SAMPLE, now)


async def test_another_secret_under_a_known_id_is_unknown_even_if_revoked(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    forged = key_text.compose("lpx", bytes(12), bytes(32))
    async with database.session() as session:
        await api_keys.mint(session, acme, "", PEPPER, now, lambda n: bytes(n - 1) + b"\1")
        row = (await session.scalars(select(ApiKey))).one()
        row.id, row.revoked_at = forged.key_id, now
    with pytest.raises(KeyUnknown):
        await verify(database, forged.text, now)


async def test_a_key_hashed_with_another_pepper_is_unknown(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    key = await mint(database, acme, now)
    with pytest.raises(KeyUnknown):
        async with database.reader() as session:
            await stored_keys.verify(session, key.text, b"another" * 8, now)


async def test_a_revoked_key_is_refused(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    key = await mint(database, acme, now)
    async with database.session() as session:
        await key_changes.revoke(session, Act(CLI, now), acme.id, key.key_id)
    with pytest.raises(KeyRevoked):
        await verify(database, key.text, now)


async def test_a_key_is_good_up_to_its_expiry_and_not_at_it(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    end = now + timedelta(days=1)
    key = await mint(database, acme, now, expires_at=end)
    await verify(database, key.text, end - timedelta(microseconds=1))
    with pytest.raises(KeyExpired):
        await verify(database, key.text, end)


async def test_keys_of_a_suspended_tenant_are_refused_until_it_is_resumed(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    key = await mint(database, acme, now)
    async with database.session() as session:
        await directory.suspend(session, Act(CLI, now), acme.id)
    with pytest.raises(TenantSuspended):
        await verify(database, key.text, now)
    async with database.session() as session:
        await directory.resume(session, Act(CLI, now), acme.id)
    await verify(database, key.text, now)


async def test_no_refusal_shows_the_key(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    key = await mint(database, acme, now)
    async with database.session() as session:
        await key_changes.revoke(session, Act(CLI, now), acme.id, key.key_id)
    for text in (SAMPLE, SAMPLE[:-1] + "x", key.text):
        with pytest.raises(KeyRefused) as refused:
            await verify(database, text, now)
        assert text[-49:] not in str(refused.value)


async def test_a_label_that_does_not_fit_is_refused(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    with pytest.raises(ValueRefused, match="label") as refused:
        async with database.session() as session:
            await api_keys.mint(session, acme, "x" * 101, PEPPER, now, secrets.token_bytes)
    assert refused.value.field == "label"


async def test_a_key_cannot_be_born_expired(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    with pytest.raises(ValueRefused, match="past"):
        await mint(database, acme, now, expires_at=now)


async def test_another_tenants_key_cannot_be_revoked(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    key = await mint(database, acme, now)
    with pytest.raises(KeyNotFound):
        async with database.session() as session:
            await key_changes.revoke(session, Act(CLI, now), "tnt_other", key.key_id)
    await verify(database, key.text, now)


async def test_revoking_twice_keeps_the_first_time(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    key = await mint(database, acme, now)
    for hours in (1, 2):
        async with database.session() as session:
            await key_changes.revoke(
                session, Act(CLI, now + timedelta(hours=hours)), acme.id, key.key_id
            )
    async with database.reader() as session:
        (record,) = await api_keys.list_keys(session, acme.id)
    assert record.revoked_at == now + timedelta(hours=1)


async def test_keys_are_listed_by_age_and_for_one_tenant(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    async with database.session() as session:
        other = await directory.create(session, "other", now, secrets.token_bytes)
    await mint(database, other, now)
    newer = await mint(database, acme, now + timedelta(seconds=1))
    older = await mint(database, acme, now)
    async with database.reader() as session:
        records = await api_keys.list_keys(session, acme.id)
    assert [record.key_id for record in records] == [older.key_id, newer.key_id]


async def derive(
    database: Database, tenant: TenantRecord, purpose: str, now: datetime
) -> MintedKey:
    async with database.session() as session:
        return await api_keys.derive(session, tenant, purpose, PEPPER, now)


async def test_a_derived_key_is_the_same_each_time_and_authenticates(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    first = await derive(database, acme, "demo", now)
    assert await derive(database, acme, "demo", now) == first
    assert (await verify(database, first.text, now)).tenant_name == "acme"


async def test_derived_keys_differ_by_purpose_and_by_tenant(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    async with database.session() as session:
        other = await directory.create(session, "other", now, secrets.token_bytes)
    texts = {
        (await derive(database, tenant, purpose, now)).text
        for tenant in (acme, other)
        for purpose in ("demo", "docs")
    }
    assert len(texts) == 4


async def test_a_derived_key_that_was_revoked_stays_so(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    key = await derive(database, acme, "demo", now)
    async with database.session() as session:
        await key_changes.revoke(session, Act(CLI, now), acme.id, key.key_id)
    with pytest.raises(KeyRevoked):
        await derive(database, acme, "demo", now)


@given(st.binary(min_size=12, max_size=12), st.binary(min_size=32, max_size=32))
def test_every_key_has_the_one_form_and_names_its_id(id_bytes: bytes, secret: bytes) -> None:
    key = key_text.compose("lpx", id_bytes, secret)
    assert re.fullmatch(r"lpx_[0-9A-Za-z]{17}_[0-9A-Za-z]{49}", key.text)
    assert key_text.parse("lpx", key.text) == key.key_id
