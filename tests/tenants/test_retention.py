"""What the database forgets, and what it must not."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select
from tests.tenants.test_ledger import append, make_record
from tests.tenants.test_periods import zones

from loraplex.tenants import audit
from loraplex.tenants.audit import Act
from loraplex.tenants.billing import BillingPeriod
from loraplex.tenants.columns import Base
from loraplex.tenants.db import Database
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.people_tables import ConsoleSession, SignInState
from loraplex.tenants.periods import month_of
from loraplex.tenants.retention import (
    BATCH_ROWS,
    Forgotten,
    forget,
    usage_is_whole_from,
    usage_kept_from,
)
from loraplex.tenants.tables import AdminKey, AuditEvent, IdempotencyRow, UsageRow

DAY = timedelta(days=1)


@given(
    now=st.integers(0, 100 * 365 * 24).map(
        lambda hours: datetime(1999, 12, 31, tzinfo=UTC) + timedelta(hours=hours)
    ),
    zone=zones,
    usage_days=st.integers(1, 500),
)
def test_usage_of_a_month_that_may_be_billed_is_kept_in_every_zone(
    now: datetime, zone: ZoneInfo, usage_days: int
) -> None:
    kept_from = usage_kept_from(now, usage_days)
    running = month_of(now, zone)
    last = month_of(running.start - timedelta(microseconds=1), zone)
    assert kept_from <= last.start
    assert kept_from <= now - usage_days * DAY
    assert kept_from == BillingPeriod.parse(f"{kept_from:%Y-%m}").start, "whole periods go"
    assert kept_from >= min(now - usage_days * DAY, last.start) - 66 * DAY, "and not much more"


async def count(database: Database, table: type[Base]) -> int:
    async with database.reader() as session:
        return await session.scalar(select(func.count()).select_from(table)) or 0


@pytest.mark.parametrize("usage_days", [None, 100])
async def test_what_is_over_goes_and_what_is_told_for_ever_stays(
    database: Database, acme: TenantRecord, now: datetime, usage_days: int | None
) -> None:
    record = await make_record(database, acme, now)
    for days in (0, 120, 121):
        at = now - days * DAY
        await append(
            database,
            replace(
                record,
                request_id=f"r{days}",
                accepted_at=at,
                first_token_at=None,
                finished_at=at,
            ),
        )
    admin_key = AdminKey(id="adm", label="", key_hash="", created_at=now)
    async with database.session() as session:
        session.add(admin_key)
        await session.flush()
        for number, at in enumerate((now, now - 2 * DAY)):
            claimed = {"owner": "adm", "key": str(number), "fingerprint": "", "nonce": ""}
            session.add(IdempotencyRow(**claimed, claimed_at=at))
            session.add(SignInState(key=str(number), data="", ends_at=at + DAY))
            seen = {"started_at": at, "seen_at": at, "ends_at": at + DAY}
            owned = {"admin_key_id": "adm", "csrf": "", "user_agent": ""}
            session.add(ConsoleSession(cookie_hash=str(number), **owned, **seen))
        act = Act(audit.CLI, now - 5000 * DAY)
        await audit.append(session, act, acme.id, "tenant.limits", "acme")

    gone = await forget(database, now, usage_days)

    assert gone == Forgotten(usage=usage_days is not None, idempotency=1, sessions=1)
    left = [await count(database, each) for each in (UsageRow, SignInState, AuditEvent)]
    assert left == [3 - gone.usage, 1, 1]
    assert await forget(database, now, usage_days) == Forgotten(0, 0, 0)
    async with database.reader() as session:
        whole_from = await usage_is_whole_from(session)
    assert whole_from == (usage_days and datetime(2025, 11, 1, tzinfo=UTC))


async def test_more_than_one_batch_goes(database: Database, now: datetime) -> None:
    rows = [
        {"owner": "k", "key": str(n), "fingerprint": "", "nonce": "", "claimed_at": now - 2 * DAY}
        for n in range(BATCH_ROWS + 1)
    ]
    async with database.session() as session:
        await session.execute(IdempotencyRow.__table__.insert(), rows)  # type: ignore[attr-defined]  # wrong on purpose, or replaced for the test
    assert (await forget(database, now, None)).idempotency == BATCH_ROWS + 1
