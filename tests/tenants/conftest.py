"""A migrated database of its own for each test, copied from one that was migrated once."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from loraplex.tenants import directory
from loraplex.tenants.db import Database, migrate
from loraplex.tenants.directory import TenantRecord

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def url_of(path: Path) -> str:
    return f"sqlite+aiosqlite:///{path}"


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    async def make() -> None:
        database = Database.open(url_of(path))
        await migrate(database)
        await database.close()

    path = tmp_path_factory.mktemp("template") / "loraplex.db"
    asyncio.run(make())
    return path


@pytest.fixture
async def database(migrated_file: Path, tmp_path: Path) -> AsyncIterator[Database]:
    copy = shutil.copy(migrated_file, tmp_path / "loraplex.db")
    database = Database.open(url_of(copy))
    yield database
    await database.close()


@pytest.fixture
def now() -> datetime:
    return NOW


@pytest.fixture
async def acme(database: Database, now: datetime) -> TenantRecord:
    async with database.session() as session:
        return await directory.create(session, "acme", now, bytes)
