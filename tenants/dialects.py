"""What SQLite and PostgreSQL have both and SQLAlchemy spells apart for each."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, cast

from sqlalchemy import ColumnElement, Table, func, literal_column, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from loraplex.tenants.columns import Base

Unit = Literal["hour", "day"]


def insert_unless_there(
    session: AsyncSession, table: type[Base], *unique: str, **values: object
) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT of one row that does nothing where a row has the same `unique` columns."""
    return _insert(session, table).values(**values).on_conflict_do_nothing(index_elements=unique)


async def insert_all_unless_there(
    session: AsyncSession, table: type[Base], unique: str, rows: Sequence[Mapping[str, object]]
) -> set[Any]:
    """Insert those rows whose `unique` column no other row has; return its values of these.

    One compiled statement, whatever the number of rows: to compile it costs more than to run it.
    """
    core = cast("Table", table.__table__)
    insert = _insert(session, core).on_conflict_do_nothing(index_elements=(unique,))
    return set(await session.scalars(insert.returning(core.c[unique]), list(rows)))


def _insert(session: AsyncSession, table: type[Base] | Table) -> postgresql.Insert | sqlite.Insert:
    on_sqlite = session.get_bind().dialect.name == "sqlite"
    return sqlite.insert(table) if on_sqlite else postgresql.insert(table)


async def lock_text(session: AsyncSession, text: str) -> None:
    """Wait until no other transaction holds the lock of this text; hold it until this one ends.

    SQLite's transactions exclude each other anyway.
    """
    if session.get_bind().dialect.name == "sqlite":
        return
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), signed=True)
    await session.execute(select(func.pg_advisory_xact_lock(number)))


def start_of(
    session: AsyncSession, unit: Unit, moment: InstrumentedAttribute[datetime]
) -> ColumnElement[str]:
    """Return SQL for the UTC hour or day of a time: `2026-11-30 14` or `2026-11-30`."""
    # Constants are spelt out: PostgreSQL would not see that two parameters are the same group.
    if session.get_bind().dialect.name == "sqlite":
        return func.substr(moment, _spelt("1"), _spelt("13" if unit == "hour" else "10"))
    form = "'YYYY-MM-DD HH24'" if unit == "hour" else "'YYYY-MM-DD'"
    return func.to_char(func.timezone(_spelt("'UTC'"), moment), _spelt(form))


def _spelt(text: str) -> ColumnElement[Any]:
    return literal_column(text)
