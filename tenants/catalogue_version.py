"""The number that grows with each change of what requests are admitted by, read as cheaply as can
be: each admission does (`platform/catalogue.py`).

Triggers raise it in the transaction of the change, so whoever reads it sees all changes up to it.
"""

import asyncio
import sqlite3
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import psycopg
from sqlalchemy import URL

from loraplex.tenants.errors import DatabaseUnusable
from loraplex.tenants.together import Together

_QUERY = "SELECT version FROM catalogue"
BUSY_TIMEOUT_S = 5.0
"""How long a read on SQLite waits for a writer that lets nobody read, which is rare and short."""
READ_TIMEOUT_S = 10
"""What a read on PostgreSQL may take, a connection included, before the database counts as away."""


class CatalogueVersion(Protocol):
    """Reads the number as it is after `read` was called."""

    async def read(self) -> int:
        """Return it. Raises DatabaseUnusable."""
        ...

    async def close(self) -> None:
        """Close what is open."""
        ...


def catalogue_version(url: URL) -> CatalogueVersion:
    """Prepare to read a database's number; nothing is opened yet."""
    if url.get_backend_name() == "sqlite":
        return SqliteCatalogueVersion(Path(url.database or ""))
    return PostgresCatalogueVersion(url)


class SqliteCatalogueVersion:
    """Reads in place: one row of a file that is in memory costs less than a switch of threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    async def read(self) -> int:
        """See CatalogueVersion."""
        try:
            try:
                return self._read()
            except sqlite3.OperationalError:
                return await asyncio.to_thread(self._read_patiently)
        except sqlite3.Error as error:
            raise DatabaseUnusable(f"The catalogue cannot be read: {error}") from error

    async def close(self) -> None:
        """See CatalogueVersion."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read(self) -> int:
        if self._connection is None:
            self._connection = sqlite3.connect(self._path, timeout=0, isolation_level=None)
        # All rows, or its transaction would stay open, and writers' log grow.
        return _only(self._connection.execute(_QUERY).fetchall())

    def _read_patiently(self) -> int:
        connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            return _only(connection.execute(_QUERY).fetchall())
        finally:
            connection.close()


class PostgresCatalogueVersion:
    """Reads over a connection of its own, once for all who wait at a time."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self._connection: psycopg.AsyncConnection[Any] | None = None
        # Whoever comes while a read is under way waits for the next: that one may have begun
        # before a change that this caller must see.
        self._reads: Together[None, int] = Together(self._read_for_all)

    async def read(self) -> int:
        """See CatalogueVersion."""
        version = await self._reads.get(None)
        assert version is not None
        return version

    async def close(self) -> None:
        """See CatalogueVersion."""
        await self._drop()

    async def _read_for_all(self, _: Collection[None]) -> Mapping[None, int]:
        return {None: await self._read_or_again()}

    async def _read_or_again(self) -> int:
        """Read; a connection that was idle may have been closed by the server, and is replaced."""
        was_idle = self._connection is not None
        try:
            return await self._read()
        except DatabaseUnusable:
            if not was_idle:
                raise
        return await self._read()

    async def _read(self) -> int:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                if self._connection is None:
                    self._connection = await _connect(self._url)
                cursor = await self._connection.execute(_QUERY, prepare=True)
                return _only(await cursor.fetchall())
        except (psycopg.Error, OSError, TimeoutError) as error:
            await self._drop()
            raise DatabaseUnusable(f"The catalogue cannot be read: {error}") from error

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


async def _connect(url: URL) -> "psycopg.AsyncConnection[Any]":
    _, options = url.get_dialect()().create_connect_args(url)
    options = {"connect_timeout": READ_TIMEOUT_S, **options}
    return await psycopg.AsyncConnection.connect(**options, autocommit=True)


def _only(rows: list[Any]) -> int:
    if not rows:
        raise DatabaseUnusable("The catalogue has no row; run `loraplex migrate`.")
    return int(rows[0][0])
