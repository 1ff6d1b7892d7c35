"""The database: SQLite as the embedded default, PostgreSQL in production."""

import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from secrets import randbelow
from time import monotonic
from typing import Any, Self

from sqlalchemy import URL, Connection, NullPool, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from loraplex.tenants import audit
from loraplex.tenants.catalogue_version import catalogue_version
from loraplex.tenants.columns import Base
from loraplex.tenants.errors import DatabaseUnusable

__all__ = ["Base", "Database", "migrate"]

DRIVERS = ("sqlite+aiosqlite", "postgresql+psycopg")
BUSY_TIMEOUT_MS = 10_000
"""How long a statement on SQLite waits for another writer before it fails."""
_SWITCH_MS = 20
CONNECT_TIMEOUT_S = 5
"""How long PostgreSQL may take to accept a connection; libpq alone would wait for minutes."""
SHOWN_OPTIONS = ("host", "port", "service")
"""Options of a URL that messages may name; others can be passwords."""


class Database:
    """An open database; use `session` to write, `reader` to read, `snapshot` to read much."""

    def __init__(self, url: URL, engine: AsyncEngine) -> None:
        """Take an engine; use `open`."""
        self.url = url
        self._engine = engine
        self._catalogue = catalogue_version(url)
        self._reading = engine.execution_options(**_reading_options(url))
        self._snapshot = engine.execution_options(**_snapshot_options(url))

    @classmethod
    def open(cls, url: str) -> Self:
        """Prepare a database of this SQLAlchemy URL; connections open when first used.

        Raises:
            DatabaseUnusable: the URL is wrong, or SQLite's file or folder cannot be written.
        """
        parsed = _parse(url)
        with explaining_failures(parsed):
            if parsed.get_backend_name() == "sqlite":
                _prepare_file(sqlite_path(parsed))
            return cls(parsed, new_engine(parsed))

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncSession]:
        """A transaction that may write: committed at the end, rolled back on any exception.

        SQLite has one writer at a time; on PostgreSQL, read what you are about to change
        `with_for_update`, which SQLite ignores.
        """
        async with AsyncSession(self._engine, expire_on_commit=False) as session, session.begin():
            yield session
            await audit.seal(session)

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[AsyncSession]:
        """Only reads, beside any writer; each statement sees what was committed before it."""
        async with AsyncSession(self._reading, expire_on_commit=False) as session, session.begin():
            yield session

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncSession]:
        """Only reads, beside any writer; all statements see what the first one saw.

        Rows may be streamed, which PostgreSQL does in a transaction only.
        """
        async with AsyncSession(self._snapshot, expire_on_commit=False) as session, session.begin():
            yield session

    async def catalogue_version(self) -> int:
        """Return the number of changes of what requests are admitted by, as of after this was
        called (`catalogue_version.py`). Raises DatabaseUnusable."""
        return await self._catalogue.read()

    async def close(self) -> None:
        """Close all connections."""
        await self._catalogue.close()
        await self._engine.dispose()


async def migrate(database: Database) -> None:
    """Bring the database to the newest version of the tables; several processes may do so at once.

    Raises:
        DatabaseTooNew: a newer version of the program migrated it.
        DatabaseUnusable: it cannot be opened or written.
    """
    # Alembic is needed at start alone, and takes long to import.
    from loraplex.tenants.migrate import upgrade  # noqa: PLC0415  Alembic is needed by few

    engine = new_engine(database.url, migrating=True)
    try:
        with explaining_failures(database.url):
            async with engine.begin() as connection:
                await connection.run_sync(upgrade)
    finally:
        await engine.dispose()


def new_engine(url: URL, *, migrating: bool = False) -> AsyncEngine:
    """Return an engine with SQLite's PRAGMAs; `hide_parameters` keeps values out of messages."""
    on_sqlite = url.get_backend_name() == "sqlite"
    options: dict[str, Any] = {"poolclass": NullPool} if migrating else {}
    if not on_sqlite and "connect_timeout" not in url.query:
        options["connect_args"] = {"connect_timeout": CONNECT_TIMEOUT_S}
    # A server may have closed connections that were idle; a file does not.
    engine = create_async_engine(url, hide_parameters=True, pool_pre_ping=not on_sqlite, **options)
    if on_sqlite:
        # While tables are rebuilt, rows of other tables point at none.
        _configure_sqlite(engine, foreign_keys=not migrating)
    return engine


@contextmanager
def explaining_failures(url: URL) -> Iterator[None]:
    """Turn the driver's and the file system's errors into ones that name database and reason."""
    try:
        yield
    except (DBAPIError, PoolTimeout, ArgumentError, OSError) as error:
        # Drivers tell what they tried in several lines.
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        raise DatabaseUnusable(f"The database {shown(url)} cannot be used: {reason}") from error


def shown(url: URL) -> str:
    """Return the URL for messages, without what may be a secret."""
    query = {name: value for name, value in url.query.items() if name in SHOWN_OPTIONS}
    return url.set(query=query).render_as_string(hide_password=True)


def sqlite_path(url: URL) -> Path:
    """Return the file of an SQLite URL."""
    return Path(url.database or "")


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # What the parser says may hold a part of the password.
        raise _unparsable() from None
    if "@" in (parsed.host or ""):
        raise _unparsable()
    if parsed.drivername not in DRIVERS:
        raise DatabaseUnusable(
            f"The database URL starts with {parsed.drivername!r}; "
            f"supported are {' and '.join(DRIVERS)}."
        )
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise DatabaseUnusable("An SQLite database needs a file: sqlite+aiosqlite:///path/to/it.")
    return parsed


def _unparsable() -> DatabaseUnusable:
    return DatabaseUnusable(
        "The database URL cannot be parsed; it looks like sqlite+aiosqlite:///path/to/file.db "
        "or postgresql+psycopg://user:password@host/name, with %40 for an @ in the password."
    )


def _reading_options(url: URL) -> dict[str, Any]:
    """Engine options under which each statement stands alone."""
    if url.get_backend_name() == "sqlite":
        return {"loraplex_begin": None}
    return {"isolation_level": "AUTOCOMMIT"}


def _snapshot_options(url: URL) -> dict[str, Any]:
    """Engine options under which all statements of a transaction see one state."""
    if url.get_backend_name() == "sqlite":
        return {"loraplex_begin": "BEGIN"}
    return {"isolation_level": "REPEATABLE READ"}


def _prepare_file(path: Path) -> None:
    """Make the folder, and find out now rather than at the first write what cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"the folder {path.parent} is not writable")
    # SQLite gives its other files, -wal and -shm, the mode of this one.
    if not path.exists():
        path.touch(mode=0o600)
    if not os.access(path, os.R_OK | os.W_OK):
        raise PermissionError(f"the file {path} is not writable")


def _set_wal(cursor: Any) -> None:  # noqa: ANN401  driver's own type
    """Switch a new file to write-ahead logging; nothing, once it is.

    Two connections that switch at once hold a shared lock each and wait for the other's. So they
    wait in short steps of different lengths: whoever gives up first lets the other through.
    """
    deadline_s = monotonic() + BUSY_TIMEOUT_MS / 1e3
    while True:
        cursor.execute(f"PRAGMA busy_timeout = {_SWITCH_MS + randbelow(_SWITCH_MS)}")
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if monotonic() > deadline_s:
                raise
        else:
            return


def _configure_sqlite(engine: AsyncEngine, *, foreign_keys: bool) -> None:
    @event.listens_for(engine.sync_engine, "connect")
    def set_pragmas(connection: Any, _record: object) -> None:  # noqa: ANN401  driver's own type
        # The driver must leave transactions to us: it would begin them only before a write, which
        # lets two transactions read the same state and then both write.
        connection.isolation_level = None
        cursor = connection.cursor()
        _set_wal(cursor)
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute(f"PRAGMA foreign_keys = {int(foreign_keys)}")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: Connection) -> None:
        # A single SELECT needs no transaction, and each statement costs a switch of threads.
        statement = connection.get_execution_options().get("loraplex_begin", "BEGIN IMMEDIATE")
        if statement is not None:
            connection.exec_driver_sql(statement)
