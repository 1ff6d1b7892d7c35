"""Usage is committed in groups; each writer learns the fate of its own record."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from tests.platform.conftest import NOW, make_tenant

from loraplex.platform.ledger_writer import LedgerWriter
from loraplex.platform.services import Resources
from loraplex.tenants.db import Database
from loraplex.tenants.errors import UsageConflict
from loraplex.tenants.ledger import UsageRecord, list_usage


class CountingDatabase:
    """A database that counts its transactions that write."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.num_sessions = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncSession]:
        self.num_sessions += 1
        async with self._database.session() as session:
            yield session


@pytest.fixture
def gateway_database_url(database_url: str) -> str:
    return database_url


def record(tenant_id: str, key_id: str, number: int, completion_tokens: int = 1) -> UsageRecord:
    return UsageRecord(
        request_id=f"req_{number}",
        tenant_id=tenant_id,
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
