"""Migrated PostgreSQL databases for tests: emptied and used again, for making one takes longer."""

import asyncio

import psycopg
from alembic.script import ScriptDirectory
from tests.services.postgres import Postgres

from loraplex.tenants.db import Base, Database, migrate
from loraplex.tenants.migrate import alembic_config

LOCK_TIMEOUT_MS = 2000
"""A connection that a test left open may hold a lock."""
NEWEST = ScriptDirectory.from_config(alembic_config()).get_current_head()


class MigratedDatabases:
    """Lends databases that have all tables and no rows."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._template = server.create_database()
        self._free: list[str] = []
        asyncio.run(migrate_url(server.url(self._template)))

    def take(self) -> str:
        """The name of a database that nobody else uses."""
        return self._free.pop() if self._free else self._server.create_database(self._template)

    def give_back(self, name: str) -> None:
        """Empty the database for the next test, or drop it if it cannot be emptied."""
        try:
            with self._server.connected(name) as connection:
                _empty(connection)
        except (psycopg.Error, TablesChanged):
            self._server.drop_database(name)
        else:
            self._free.append(name)


class TablesChanged(Exception):
    """A test left the database with another version than the newest."""


def _empty(connection: psycopg.Connection) -> None:
    """Delete all rows. Raises TablesChanged, or psycopg.Error for a table that was renamed."""
    connection.execute(f"SET lock_timeout = {LOCK_TIMEOUT_MS}")
    connection.execute("SET session_replication_role = replica")  # past triggers that keep rows
    for table in reversed(Base.metadata.sorted_tables):
        if table.name != "catalogue":  # its one row is the migrations'
            connection.execute(f'DELETE FROM "{table.name}"')
    versions = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    if versions != [(NEWEST,)]:
        raise TablesChanged(versions)


async def migrate_url(url: str) -> None:
    """Migrate the database of this URL."""
    database = Database.open(url)
    await migrate(database)
    await database.close()
