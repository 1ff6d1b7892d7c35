"""What SQLite and PostgreSQL have both and SQLAlchemy spells apart for each."""

import hashlib
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, func, literal_column, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from loraplex.tenants.columns import Base

Unit = Literal["hour", "day"]


def insert_unless_there(
    session: AsyncSession, table: type[Base], *unique: str, **values: object
) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT of one row that does nothing where a row has the same `unique` columns."""
    on_sqlite = session.get_bind().dialect.name == "sqlite"
    insert = sqlite.insert(table) if on_sqlite else postgresql.insert(table)
    return insert.values(**values).on_conflict_do_nothing(index_elements=unique)


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
