"""Usage is committed in groups; each writer learns the fate of its own record."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from tests.platform.conftest import NOW, make_tenant

from loraplex.platform import ledger_writer
from loraplex.platform.ledger_writer import LedgerWriter
from loraplex.platform.services import Resources
from loraplex.tenants.db import Database
from loraplex.tenants.errors import UsageConflict
from loraplex.tenants.ledger import UsageRecord, list_usage
from loraplex.tenants.projects import default_project_id


class CountingDatabase:
    """A database that counts its transactions that write, and is away for the first few."""

    def __init__(self, database: Database, num_failures: int = 0) -> None:
        self._database = database
        self._num_failures = num_failures
        self.num_sessions = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncSession]:
        self.num_sessions += 1
        if self.num_sessions <= self._num_failures:
            raise OperationalError("insert", {}, Exception("away"))
        async with self._database.session() as session:
            yield session


@pytest.fixture
def gateway_database_url(database_url: str) -> str:
    return database_url


def record(tenant_id: str, key_id: str, number: int, completion_tokens: int = 1) -> UsageRecord:
    return UsageRecord(
        request_id=f"req_{number}",
        tenant_id=tenant_id,
        project_id=default_project_id(tenant_id),
        key_id=key_id,
        requested_model="tiny",
        model="tiny",
        adapter_digest=None,
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=completion_tokens,
        finish_reason="stop",
        accepted_at=NOW,
        first_token_at=NOW,
        finished_at=NOW,
        queue_ms=0.0,
    )


@pytest.fixture
async def template(resources: Resources) -> UsageRecord:
    tenant, key = await make_tenant(resources, "acme")
    return record(tenant.id, key.split("_")[1], 0)


async def test_records_that_wait_share_a_transaction(
    resources: Resources, template: UsageRecord
) -> None:
    database = CountingDatabase(resources.database)
    writer = LedgerWriter(database)
    records = [replace(template, request_id=f"req_{i}") for i in range(50)]
    await asyncio.gather(*(writer.append(r) for r in records))
    async with resources.database.reader() as session:
        assert len(await list_usage(session, template.tenant_id)) == 50
    assert database.num_sessions <= 2


async def test_an_outage_costs_one_transaction_an_attempt_however_many_records_wait(
    resources: Resources, template: UsageRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_writer, "MIN_BACKOFF_S", 0.0)
    database = CountingDatabase(resources.database, num_failures=3)
    writer = LedgerWriter(database)
    await asyncio.gather(
        *(writer.append(replace(template, request_id=f"req_{i}")) for i in range(20))
    )
    async with resources.database.reader() as session:
        assert len(await list_usage(session, template.tenant_id)) == 20
    assert database.num_sessions <= 5
    assert not writer.failing


async def test_pauses_between_attempts_double_up_to_a_cap(
    resources: Resources, template: UsageRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses_s: list[float] = []

    async def note(pause_s: float) -> None:
        pauses_s.append(pause_s)

    monkeypatch.setattr(ledger_writer.asyncio, "sleep", note)
    await LedgerWriter(CountingDatabase(resources.database, num_failures=8)).append(template)
    assert pauses_s == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


async def test_a_record_that_cannot_be_written_does_not_take_others_with_it(
    resources: Resources, template: UsageRecord
) -> None:
    writer = LedgerWriter(resources.database)
    await writer.append(template)
    conflicting = replace(template, completion_tokens=9)
    others = [replace(template, request_id=f"req_{i}") for i in (1, 2)]
    results = await asyncio.gather(
        *(writer.append(r) for r in (others[0], conflicting, others[1])), return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None), UsageConflict, type(None)]
    async with resources.database.reader() as session:
        assert len(await list_usage(session, template.tenant_id)) == 3


async def test_a_writer_that_was_cancelled_does_not_stop_the_next(
    resources: Resources, template: UsageRecord
) -> None:
    writer = LedgerWriter(resources.database)
    gone = asyncio.create_task(writer.append(template))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await writer.append(replace(template, request_id="req_1"))
    async with resources.database.reader() as session:
        assert len(await list_usage(session, template.tenant_id)) == 2
