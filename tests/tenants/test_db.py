"""Opening, transactions and column types of the database."""

import asyncio
import secrets
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError, StatementError
from tests.services.postgres import Postgres

from loraplex.tenants import directory
from loraplex.tenants.db import Database, explaining_failures, migrate
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.errors import DatabaseUnusable
from loraplex.tenants.tables import ApiKey, Tenant


def key_of_nobody(label: str, now: datetime) -> ApiKey:
    return ApiKey(
        id="k", tenant_id="nobody", project_id="none", label=label, key_hash="", created_at=now
    )


async def test_a_transaction_that_fails_leaves_nothing(
    database: Database, acme: TenantRecord
) -> None:
    async def fail_after_writing() -> None:
        async with database.session() as session:
            await session.execute(text("UPDATE tenant SET weight = 5"))
            raise KeyError

    with pytest.raises(KeyError):
        await fail_after_writing()
    async with database.reader() as session:
        assert await session.scalar(select(Tenant.weight)) == 1.0


async def test_writers_that_read_first_do_not_lose_each_others_updates(
    database: Database, acme: TenantRecord
) -> None:
    async def add_one() -> None:
        async with database.session() as session:
            tenant = await session.get_one(Tenant, acme.id, with_for_update=True)
            await asyncio.sleep(0)
            tenant.weight += 1

    await asyncio.gather(*(add_one() for _ in range(12)))
    async with database.reader() as session:
        assert await session.scalar(select(Tenant.weight)) == 13.0


async def test_a_reader_does_not_wait_for_a_writer(database: Database, acme: TenantRecord) -> None:
    async with database.session() as writing, database.reader() as reading:
        await writing.execute(text("UPDATE tenant SET weight = 5"))
        assert await reading.scalar(select(Tenant.weight)) == 1.0


async def test_foreign_keys_are_enforced(database: Database, now: datetime) -> None:
    with pytest.raises(IntegrityError):
        async with database.session() as session:
            session.add(
                ApiKey(
                    id="k",
                    tenant_id="nobody",
                    project_id="none",
                    label="",
                    key_hash="",
                    created_at=now,
                )
            )


async def test_times_come_back_in_utc(database: Database, acme: TenantRecord) -> None:
    noon_in_tokyo = datetime(2026, 7, 1, 12, tzinfo=timezone(timedelta(hours=9)))
    async with database.session() as session:
        (await session.get_one(Tenant, acme.id)).created_at = noon_in_tokyo
    async with database.reader() as session:
        read = await session.scalar(select(Tenant.created_at))
    assert read == noon_in_tokyo
    assert read.tzinfo is UTC


async def test_a_time_without_a_zone_is_refused(database: Database, acme: TenantRecord) -> None:
    with pytest.raises(StatementError, match="without a zone"):
        async with database.session() as session:
            (await session.get_one(Tenant, acme.id)).created_at = datetime(2026, 7, 1)  # noqa: DTZ001  that is what is refused


async def test_error_messages_do_not_hold_values(database: Database, now: datetime) -> None:
    with pytest.raises(IntegrityError) as failure:
        async with database.session() as session:
            session.add(
                ApiKey(
                    id="k",
                    tenant_id="nobody",
                    project_id="none",
                    label="secret plan",
                    key_hash="",
                    created_at=now,
                )
            )
    assert "secret plan" not in str(failure.value)


def test_the_folder_of_a_new_database_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    Database.open(f"sqlite+aiosqlite:///{tmp_path / 'new' / 'loraplex.db'}")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "loraplex.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("no url at all", "cannot be parsed"),
        ("postgresql://u:hunter2@h/d", "supported are sqlite"),
        ("postgresql+psycopg://u:hunter2@h:port/d", "cannot be parsed"),
        ("postgresql+psycopg://u:part@hunter2@h/d", "%40 for an @"),
        ("sqlite+aiosqlite://", "needs a file"),
        ("sqlite+aiosqlite:///:memory:", "needs a file"),
    ],
)
def test_a_url_that_cannot_work_is_refused_without_its_password(url: str, reason: str) -> None:
    with pytest.raises(DatabaseUnusable, match=reason) as refused:
        Database.open(url)
    assert "hunter2" not in str(refused.value)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DatabaseUnusable, match="/file"):
        Database.open(f"sqlite+aiosqlite:///{tmp_path / 'file' / 'loraplex.db'}")


@pytest.mark.parametrize("is_file_there", [True, False])
def test_what_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_file_there: bool
) -> None:
    path = tmp_path / "loraplex.db"
    if is_file_there:
        path.touch()
    # The superuser may write anywhere, so the system's answer is replaced.
    denied = path if is_file_there else tmp_path
    monkeypatch.setattr("os.access", lambda asked, _mode: asked != denied)
    with pytest.raises(DatabaseUnusable, match=f"{denied} is not writable"):
        Database.open(f"sqlite+aiosqlite:///{path}")


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loraplex.db").write_bytes(b"not a database " * 100)
    database = Database.open(f"sqlite+aiosqlite:///{tmp_path / 'loraplex.db'}")
    with pytest.raises(DatabaseUnusable, match="file is not a database"):
        await migrate(database)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://u:hunter2@127.0.0.1:1/d",
        "postgresql+psycopg://127.0.0.1:1/d?user=u&password=hunter2",
        "postgresql+psycopg://u:hunter2@/d?host=127.0.0.1,127.0.0.2&port=1,1",
    ],
)
async def test_a_server_that_is_away_is_told_in_one_line_without_the_password(url: str) -> None:
    database = Database.open(url)
    with pytest.raises(DatabaseUnusable, match=r"127\.0\.0\.1.*refused") as refused:
        await migrate(database)
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_url_whose_options_do_not_fit_together_is_refused() -> None:
    with pytest.raises(DatabaseUnusable, match="hosts and ports"):
        Database.open("postgresql+psycopg://u@/d?host=h,i,j&port=1,2")


async def test_a_database_that_the_server_lacks_is_named(postgres: Postgres) -> None:
    database = Database.open(postgres.url("nowhere"))
    with pytest.raises(DatabaseUnusable, match='"nowhere" does not exist'):
        await migrate(database)


def test_failures_that_are_no_database_failures_pass_through(database: Database) -> None:
    with pytest.raises(ZeroDivisionError), explaining_failures(database.url):
        raise ZeroDivisionError


async def test_a_snapshot_shows_what_its_first_statement_saw(database: Database) -> None:
    async with database.snapshot() as snapshot:
        before = await directory.list_tenants(snapshot)
        async with database.session() as session:
            await directory.create(session, "later", datetime.now(UTC), secrets.token_bytes)
        assert await directory.list_tenants(snapshot) == before
    async with database.snapshot() as snapshot:
        assert len(await directory.list_tenants(snapshot)) == len(before) + 1
