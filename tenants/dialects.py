"""The one statement that SQLite and PostgreSQL share and SQLAlchemy has apart for each."""

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.tenants.columns import Base


def insert_unless_there(
    session: AsyncSession, table: type[Base], *unique: str, **values: object
) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT of one row that does nothing where a row has the same `unique` columns."""
    on_sqlite = session.get_bind().dialect.name == "sqlite"
    insert = sqlite.insert(table) if on_sqlite else postgresql.insert(table)
    return insert.values(**values).on_conflict_do_nothing(index_elements=unique)
