"""The ledger: appended once, never changed, read by one tenant."""

import secrets
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError

from loraplex.tenants import api_keys, directory, ledger
from loraplex.tenants.db import Database
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.errors import UsageConflict
from loraplex.tenants.ledger import UsageRecord
from loraplex.tenants.projects import default_project_id
from loraplex.tenants.tables import UsageRow


async def make_record(database: Database, tenant: TenantRecord, now: datetime) -> UsageRecord:
    async with database.session() as session:
        key = await api_keys.mint(session, tenant, "", bytes(32), now, secrets.token_bytes)
    return UsageRecord(
        request_id=f"req-{tenant.name}",
        tenant_id=tenant.id,
        project_id=default_project_id(tenant.id),
        key_id=key.key_id,
        requested_model=f"{tenant.name}/support",
        model=f"{tenant.name}/support@3",
        adapter_digest="d" * 64,
        prompt_tokens=12,
        cached_tokens=8,
        completion_tokens=5,
        finish_reason="stop",
        accepted_at=now,
        first_token_at=now + timedelta(milliseconds=40),
        finished_at=now + timedelta(milliseconds=90),
        queue_ms=1.5,
    )


@pytest.fixture
async def record(database: Database, acme: TenantRecord, now: datetime) -> UsageRecord:
    return await make_record(database, acme, now)


async def append(database: Database, record: UsageRecord) -> bool:
    async with database.session() as session:
        return await ledger.append(session, record)


async def test_what_is_read_is_what_was_appended(database: Database, record: UsageRecord) -> None:
    assert await append(database, record)
    async with database.reader() as session:
        assert await ledger.list_usage(session, record.tenant_id) == [record]


async def test_a_request_that_made_no_output_can_be_recorded(
    database: Database, record: UsageRecord
) -> None:
    nothing = replace(
        record, adapter_digest=None, first_token_at=None, completion_tokens=0, finish_reason="abort"
    )
    await append(database, nothing)
    async with database.reader() as session:
        assert await ledger.list_usage(session, record.tenant_id) == [nothing]


async def test_the_same_record_again_has_no_effect(database: Database, record: UsageRecord) -> None:
    await append(database, record)
    assert not await append(database, record)
    async with database.reader() as session:
        assert await session.scalar(select(func.count(UsageRow.id))) == 1


async def test_other_figures_under_the_same_id_are_refused(
    database: Database, record: UsageRecord
) -> None:
    await append(database, record)
    with pytest.raises(UsageConflict, match="req-acme"):
        await append(database, replace(record, completion_tokens=6))
    async with database.reader() as session:
        assert await ledger.list_usage(session, record.tenant_id) == [record]


async def test_a_tenant_reads_its_own_usage_alone(
    database: Database, record: UsageRecord, now: datetime
) -> None:
    async with database.session() as session:
        other = await directory.create(session, "other", now, secrets.token_bytes)
    theirs = await make_record(database, other, now)
    await append(database, record)
    await append(database, theirs)
    async with database.reader() as session:
        assert await ledger.list_usage(session, other.id) == [theirs]


async def test_times_select_from_since_on_and_before_until(
    database: Database, record: UsageRecord, now: datetime
) -> None:
    records = [
        replace(record, request_id=f"r{i}", accepted_at=now + timedelta(hours=i)) for i in range(4)
    ]
    for each in records:
        await append(database, each)
    async with database.reader() as session:
        found = await ledger.list_usage(
            session, record.tenant_id, now + timedelta(hours=1), now + timedelta(hours=3)
        )
    assert found == [records[2], records[1]]


async def test_a_limit_keeps_the_newest(
    database: Database, record: UsageRecord, now: datetime
) -> None:
    for i in (1, 0, 2):
        accepted_at = now + timedelta(hours=i)
        await append(database, replace(record, request_id=f"r{i}", accepted_at=accepted_at))
    async with database.reader() as session:
        found = await ledger.list_usage(session, record.tenant_id, limit=2)
    assert [each.request_id for each in found] == ["r2", "r1"]


async def test_usage_of_a_key_that_does_not_exist_is_refused(
    database: Database, record: UsageRecord
) -> None:
    with pytest.raises(IntegrityError):
        await append(database, replace(record, key_id="nobody's"))


@pytest.mark.parametrize(
    "change", [{"cached_tokens": 13}, {"cached_tokens": -1}, {"completion_tokens": -1}]
)
def test_impossible_counts_are_a_mistake_of_the_caller(
    change: dict[str, int], record: UsageRecord
) -> None:
    with pytest.raises(ValueError, match="impossible token counts"):
        replace(record, **change)
