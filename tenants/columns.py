"""Column types and the declarative base: the same on SQLite and PostgreSQL."""

from datetime import UTC, datetime
from typing import Annotated

from sqlalchemy import BigInteger, DateTime, Dialect, Integer, MetaData, TypeDecorator
from sqlalchemy.orm import DeclarativeBase

# SQLite numbers rows by itself only where the key is exactly INTEGER.
BigId = Annotated[int, "64-bit row number"]


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime, stored and returned in UTC; SQLite alone would drop the zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse naive times, whose meaning depends on the machine."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a time without a zone cannot be stored: {value}")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(
        self,
        value: datetime | None,
        dialect: Dialect,  # noqa: ARG002  the base class has it
    ) -> datetime | None:
        """Give SQLite's times their zone back."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def one_of(column: str, values: tuple[str, ...]) -> str:
    """Condition of a column that holds one of a few texts."""
    return f"{column} IN ({', '.join(repr(value) for value in values)})"


class Base(DeclarativeBase):
    """Base of all tables; constraints get names, without which migrations cannot drop them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {BigId: BigInteger().with_variant(Integer, "sqlite")}  # noqa: RUF012  as SQLAlchemy wants it
