"""Brings a database to the newest migration, in one transaction that others wait for."""

import importlib.util
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from loraplex.tenants.errors import DatabaseTooNew

MIGRATIONS_PACKAGE = "loraplex.migrations"

_LOCK_ID = 0x6C6F7261706C6578
"""Advisory lock of PostgreSQL under which migrations run: the ASCII of our name."""


def upgrade(connection: Connection) -> None:
    """Upgrade within the open transaction; on SQLite it holds the write lock already.

    Raises:
        DatabaseTooNew: the database is at a revision that the installed migrations lack.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": _LOCK_ID})
    config = alembic_config()
    config.attributes["connection"] = connection
    script = ScriptDirectory.from_config(config)
    known = {revision.revision for revision in script.walk_revisions()}
    current = MigrationContext.configure(connection).get_current_heads()
    for revision in current:
        if revision not in known:
            raise DatabaseTooNew(
                f"The database is at migration {revision}, which this version of loraplex does "
                "not know: a newer version migrated it. Install that version, or restore a backup."
            )
    if current != tuple(script.get_heads()):
        command.upgrade(config, "head")


def alembic_config() -> Config:
    """Return Alembic's configuration for the migrations inside the installed package."""
    spec = importlib.util.find_spec(MIGRATIONS_PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    config = Config()
    folder = Path(next(iter(spec.submodule_search_locations)))
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
