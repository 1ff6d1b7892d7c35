"""Uses of keys: noted for free, written together."""

import asyncio
import secrets
from datetime import datetime, timedelta

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError

from loraplex.tenants import api_keys
from loraplex.tenants.db import Database
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.last_used import LastUsed


@pytest.fixture
async def key_id(database: Database, acme: TenantRecord, now: datetime) -> str:
    async with database.session() as session:
        key = await api_keys.mint(session, acme, "", bytes(32), now, secrets.token_bytes)
    return key.key_id


async def read(database: Database, acme: TenantRecord) -> datetime | None:
    async with database.reader() as session:
        return (await api_keys.list_keys(session, acme.id))[0].last_used_at


async def test_many_uses_become_one_write_of_the_last(
    database: Database, acme: TenantRecord, key_id: str, now: datetime
) -> None:
    statements: list[str] = []

    def note_updates(_c: object, _cursor: object, statement: str, *_: object) -> None:
        statements.extend([statement] if statement.startswith("UPDATE") else [])

    event.listen(database._engine.sync_engine, "before_cursor_execute", note_updates)
    last_used = LastUsed()
    for seconds in range(50):
        last_used.note(key_id, now + timedelta(seconds=seconds))
    assert statements == []
    await last_used.flush(database)
    await last_used.flush(database)
    assert len(statements) == 1
    assert await read(database, acme) == now + timedelta(seconds=49)


async def test_a_later_use_seen_by_another_gateway_stays(
    database: Database, acme: TenantRecord, key_id: str, now: datetime
) -> None:
    for used_at in (now + timedelta(hours=1), now):
        last_used = LastUsed()
        last_used.note(key_id, used_at)
        await last_used.flush(database)
    assert await read(database, acme) == now + timedelta(hours=1)


async def test_a_write_that_failed_is_made_by_the_next_flush(
    database: Database, acme: TenantRecord, key_id: str, now: datetime
) -> None:
    last_used = LastUsed()
    last_used.note(key_id, now)
    async with database.session() as session:
        await session.execute(text("ALTER TABLE api_key RENAME TO gone"))
    with pytest.raises(DBAPIError, match=r"no such table|does not exist"):
        await last_used.flush(database)
    async with database.session() as session:
        await session.execute(text("ALTER TABLE gone RENAME TO api_key"))
    await last_used.flush(database)
    assert await read(database, acme) == now


async def test_what_was_noted_is_written_when_the_gateway_stops(
    database: Database, acme: TenantRecord, key_id: str, now: datetime
) -> None:
    last_used = LastUsed()
    task = asyncio.create_task(last_used.run(database, interval_s=3600))
    await asyncio.sleep(0)
    last_used.note(key_id, now)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await read(database, acme) == now


async def test_a_failed_flush_is_logged_and_does_not_end_the_flushing(
    database: Database, key_id: str, now: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    async with database.session() as session:
        await session.execute(text("ALTER TABLE api_key RENAME TO gone"))
    last_used = LastUsed()
    last_used.note(key_id, now)
    failed_twice = asyncio.Event()
    event.listen(database._engine.sync_engine, "handle_error", lambda _: count())
    failures: list[None] = []

    def count() -> None:
        failures.append(None)
        if len(failures) == 2:
            failed_twice.set()

    task = asyncio.create_task(last_used.run(database, interval_s=0))
    await failed_twice.wait()
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "could not be written" in caplog.text
