"""Migrations: they make the tables that the code describes, whoever else migrates."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import CheckConstraint, Connection, inspect, text

from loraplex.adapters.registry import tables as _registry_tables  # noqa: F401  registers its tables
from loraplex.tenants import people_tables as _people_tables  # noqa: F401  registers its tables
from loraplex.tenants import quota_tables as _quota_tables  # noqa: F401  registers its tables
from loraplex.tenants import tables as _tenants_tables  # noqa: F401  registers its tables
from loraplex.tenants.db import Base, Database, migrate, new_engine
from loraplex.tenants.errors import DatabaseTooNew
from loraplex.tenants.migrate import alembic_config

Work = Callable[[Connection], Any]


async def on_connection(database: Database, work: Work) -> Any:
    engine = new_engine(database.url, migrating=True)
    try:
        async with engine.begin() as connection:
            return await connection.run_sync(work)
    finally:
        await engine.dispose()


def with_alembic(connection: Connection) -> Config:
    config = alembic_config()
    config.attributes["connection"] = connection
    return config


async def test_migrations_make_exactly_the_tables_of_the_code(database: Database) -> None:
    def differences(connection: Connection) -> list[Any]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return compare_metadata(context, Base.metadata)

    assert await on_connection(database, differences) == []


async def test_check_constraints_are_those_of_the_code(database: Database) -> None:
    def made(connection: Connection) -> dict[str | None, str]:
        tables = inspect(connection)
        return {
            constraint["name"]: constraint["sqltext"]
            for table in Base.metadata.tables
            for constraint in tables.get_check_constraints(table)
        }

    declared = {
        str(constraint.name): str(constraint.sqltext)
        for table in Base.metadata.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, CheckConstraint)
    }
    found = await on_connection(database, made)
    assert found.keys() == declared.keys()
    if database.url.get_backend_name() == "sqlite":
        # PostgreSQL keeps a condition parsed, and gives it back in other words.
        assert found == declared


async def test_migrations_can_be_taken_back_and_made_again(database: Database) -> None:
    def back_and_forth(connection: Connection) -> list[str]:
        command.downgrade(with_alembic(connection), "base")
        left = inspect(connection).get_table_names()
        command.upgrade(with_alembic(connection), "head")
        return left

    assert await on_connection(database, back_and_forth) == ["alembic_version"]


async def test_processes_that_migrate_at_once_wait_for_each_other(empty_database_url: str) -> None:
    databases = [Database.open(empty_database_url) for _ in range(4)]
    await asyncio.gather(*(migrate(database) for database in databases))
    async with databases[0].reader() as session:
        rows = await session.scalars(text("SELECT version_num FROM alembic_version"))
        assert rows.all() == ["0006"]
    await databases[0].close()


async def test_a_migration_that_fails_leaves_the_database_as_it_was(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def upgrade_then_fail(config: Config, revision: str) -> None:
        upgrade(config, revision)
        raise KeyError

    upgrade = command.upgrade
    database = Database.open(empty_database_url)
    monkeypatch.setattr("alembic.command.upgrade", upgrade_then_fail)
    with pytest.raises(KeyError):
        await migrate(database)
    tables = await on_connection(database, lambda c: inspect(c).get_table_names())
    assert tables == []


async def test_a_database_of_a_newer_version_is_refused(database: Database) -> None:
    async with database.session() as session:
        await session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(DatabaseTooNew, match="9999"):
        await migrate(database)


async def test_migrating_keeps_the_rows_there_are(database: Database, acme: Any) -> None:
    await migrate(database)
    async with database.reader() as session:
        assert await session.scalar(text("SELECT name FROM tenant")) == "acme"
