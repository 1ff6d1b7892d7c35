"""A migrated database of its own for each test, on each kind of database."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from loraplex.tenants import directory
from loraplex.tenants.db import Database
from loraplex.tenants.directory import TenantRecord

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database.open(database_url)
    yield database
    await database.close()


@pytest.fixture
def now() -> datetime:
    return NOW


@pytest.fixture
async def acme(database: Database, now: datetime) -> TenantRecord:
    async with database.session() as session:
        return await directory.create(session, "acme", now, bytes)
