"""The chain of the audit log: events that are appended at once make no fork, and whatever is
changed, removed or put in is found."""

import asyncio
from datetime import datetime

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from loraplex.tenants import audit, audit_chain
from loraplex.tenants.audit import CLI, Act, AuditFilter, find_events
from loraplex.tenants.audit_chain import ChainReport
from loraplex.tenants.db import Database
from loraplex.tenants.directory import TenantRecord


async def tell(database: Database, now: datetime, number: int) -> None:
    async with database.session() as session:
        for part in range(2):
            detail = {"number": number, "part": part}
            await audit.append(session, Act(CLI, now), None, "test.done", f"thing-{number}", detail)


async def report(database: Database, expected: str | None = None) -> ChainReport:
    async with database.snapshot() as session:
        return await audit_chain.verify(session, expected)


async def tampered(database: Database, *statements: str) -> None:
    """Past the triggers, as whoever owns the database's files could."""
    on_sqlite = database.url.get_backend_name() == "sqlite"
    guards = (
        ["DROP TRIGGER IF EXISTS audit_event_update", "DROP TRIGGER IF EXISTS audit_event_delete"]
        if on_sqlite
        else ["SET LOCAL session_replication_role = replica"]
    )
    async with database.session() as session:
        for statement in (*guards, *statements):
            await session.execute(text(statement))


async def test_events_told_at_once_are_one_chain(database: Database, now: datetime) -> None:
    await asyncio.gather(*(tell(database, now, number) for number in range(12)))
    found = await report(database)
    assert (found.num_events, found.is_whole) == (24, True)
    async with database.reader() as session:
        head = await audit_chain.head(session)
        events = await find_events(session, AuditFilter(), 100)
    assert head is not None
    assert head.hash == found.head
    assert len({event.detail["number"] for event in events}) == 12


@pytest.mark.parametrize(
    ("statement", "broken"),
    [
        ("UPDATE audit_event SET actor = 'nobody' WHERE id = 3", 3),
        ("UPDATE audit_event SET detail = '{}' WHERE id = 4", 4),
        ("UPDATE audit_event SET hash = NULL, previous_hash = NULL WHERE id = 5", 5),
        ("UPDATE audit_event SET request_id = 'req_1' WHERE id = 1", 1),
        ("DELETE FROM audit_event WHERE id = 2", 3),
        ("DELETE FROM audit_event WHERE id = 1", 2),
    ],
)
async def test_the_first_event_that_is_wrong_is_named(
    database: Database, now: datetime, statement: str, broken: int
) -> None:
    for number in range(3):
        await tell(database, now, number)
    async with database.reader() as session:
        first = int((await find_events(session, AuditFilter(), 100))[-1].id)
    shifted = statement.replace("WHERE id = ", f"WHERE id - {first - 1} = ")
    await tampered(database, shifted)
    assert (await report(database)).broken_id == broken + first - 1


async def test_an_end_that_was_cut_off_is_found_by_a_hash_kept_elsewhere(
    database: Database, now: datetime
) -> None:
    for number in range(2):
        await tell(database, now, number)
    head = (await report(database)).head
    assert (await report(database, head)).is_whole
    await tampered(database, "DELETE FROM audit_event WHERE id = (SELECT max(id) FROM audit_event)")
    assert (await report(database)).is_whole
    assert not (await report(database, head)).is_whole


@pytest.mark.parametrize(
    "statement", ["UPDATE audit_event SET actor = 'x'", "DELETE FROM audit_event"]
)
async def test_the_database_changes_and_deletes_no_event(
    database: Database, now: datetime, statement: str
) -> None:
    await tell(database, now, 0)
    with pytest.raises(DBAPIError, match="audit events are never changed"):
        async with database.session() as session:
            await session.execute(text(statement))
    assert (await report(database)).num_events == 2


async def test_what_is_rolled_back_is_not_told(
    database: Database, acme: TenantRecord, now: datetime
) -> None:
    async def fail() -> None:
        async with database.session() as session:
            await audit.append(session, Act(CLI, now), acme.id, "test.done", "x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert (await report(database)).num_events == 0
