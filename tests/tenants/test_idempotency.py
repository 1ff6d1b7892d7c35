"""One effect and one answer per idempotency key, whoever dies or races."""

import asyncio
import secrets
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import select

from loraplex.tenants import directory, idempotency
from loraplex.tenants.db import Database
from loraplex.tenants.errors import IdempotencyInProgress, IdempotencyKeyReused, ValueRefused
from loraplex.tenants.idempotency import KEPT, LEASE, Answered, Attempt, Claim
from loraplex.tenants.tables import IdempotencyRow

ATTEMPT = Attempt("admin-1", "key-1", idempotency.fingerprint(b"POST", b"/x", b"{}"))
SECOND = timedelta(seconds=1)


async def claim(database: Database, now: datetime, attempt: Attempt = ATTEMPT) -> Claim | Answered:
    async with database.session() as session:
        return await idempotency.claim(session, attempt, now, secrets.token_bytes)


async def claimed(database: Database, now: datetime) -> Claim:
    made = await claim(database, now)
    assert isinstance(made, Claim)
    return made


async def answer(database: Database, made: Claim) -> None:
    async with database.session() as session:
        await idempotency.answer(session, made, 201, b'{"a": 1}')


async def test_an_answer_is_repeated_for_24_hours(database: Database, now: datetime) -> None:
    made = await claimed(database, now)
    await answer(database, made)
    again = await claim(database, now + KEPT)
    assert again == Answered(201, b'{"a": 1}', made.nonce)
    assert isinstance(await claim(database, now + KEPT + SECOND), Claim)


async def test_the_same_key_with_another_request_is_refused(
    database: Database, now: datetime
) -> None:
    other = replace(ATTEMPT, fingerprint=idempotency.fingerprint(b"POST", b"/x", b"{ }"))
    made = await claimed(database, now)
    with pytest.raises(IdempotencyKeyReused):
        await claim(database, now, other)
    await answer(database, made)
    with pytest.raises(IdempotencyKeyReused):
        await claim(database, now, other)


async def test_keys_of_other_operators_are_other_keys(database: Database, now: datetime) -> None:
    await claimed(database, now)
    assert isinstance(await claim(database, now, replace(ATTEMPT, owner="admin-2")), Claim)


async def test_of_many_at_once_one_has_the_claim(database: Database, now: datetime) -> None:
    results = await asyncio.gather(
        *(claim(database, now) for _ in range(8)), return_exceptions=True
    )
    assert sum(isinstance(result, Claim) for result in results) == 1
    assert sum(isinstance(result, IdempotencyInProgress) for result in results) == 7


async def test_a_claim_whose_maker_died_is_taken_over_and_its_late_effect_rolled_back(
    database: Database, now: datetime
) -> None:
    late = await claimed(database, now)
    with pytest.raises(IdempotencyInProgress):
        await claim(database, now + LEASE - SECOND)
    second = await claim(database, now + LEASE)
    assert isinstance(second, Claim)

    async def late_effect() -> None:
        async with database.session() as session:
            await directory.create(session, "twice", now, secrets.token_bytes)
            await idempotency.answer(session, late, 201, b"{}")

    with pytest.raises(IdempotencyInProgress):
        await late_effect()
    await answer(database, second)
    async with database.reader() as session:
        assert await directory.list_tenants(session) == []


async def test_a_released_claim_can_be_made_again_and_an_answer_is_not_released(
    database: Database, now: datetime
) -> None:
    async with database.session() as session:
        await idempotency.release(session, await _first(database, now, session))
    made = await claimed(database, now)
    await answer(database, made)
    async with database.session() as session:
        await idempotency.release(session, made)
    assert isinstance(await claim(database, now), Answered)


async def _first(database: Database, now: datetime, session) -> Claim:
    made = await idempotency.claim(session, ATTEMPT, now, secrets.token_bytes)
    assert isinstance(made, Claim)
    return made


async def test_secrets_can_be_made_again_from_the_row_and_the_deployments_secret_only(
    database: Database, now: datetime
) -> None:
    pepper = b"p" * 32
    made = await claimed(database, now)
    entropy = made.entropy(pepper)
    first = [entropy(12), entropy(32)]
    await answer(database, made)
    again = await claim(database, now)
    assert isinstance(again, Answered)
    entropy = again.entropy(pepper)
    assert [entropy(12), entropy(32)] == first
    assert again.entropy(b"q" * 32)(12) != first[0]
    assert first[0][:12] != first[1][:12]


async def test_rows_go_after_24_hours(database: Database, now: datetime) -> None:
    await claimed(database, now)
    await claim(database, now + KEPT + SECOND, replace(ATTEMPT, key="key-2"))
    async with database.reader() as session:
        assert [row.key for row in await session.scalars(select(IdempotencyRow))] == ["key-2"]


@pytest.mark.parametrize("key", ["", "k" * 256])
async def test_a_key_has_1_to_255_characters(database: Database, now: datetime, key: str) -> None:
    with pytest.raises(ValueRefused, match="255"):
        await claim(database, now, replace(ATTEMPT, key=key))


def test_a_fingerprint_tells_where_its_parts_end() -> None:
    assert idempotency.fingerprint(b"ab", b"c") != idempotency.fingerprint(b"a", b"bc")
