"""Alembic's environment: runs the migrations on a connection that is open already."""

from typing import Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext

# These modules fill `Base.metadata`, which autogenerate compares with the database.
from loraplex.adapters.registry import tables as _registry_tables  # noqa: F401  registers its tables
from loraplex.tenants import people_tables as _people_tables  # noqa: F401  registers its tables
from loraplex.tenants import quota_tables as _quota_tables  # noqa: F401  registers its tables
from loraplex.tenants import tables as _tenants_tables  # noqa: F401  registers its tables
from loraplex.tenants.columns import Base, UtcDateTime


def render_item(kind: str, item: object, _context: AutogenContext) -> str | Literal[False]:
    """Write our column type as the plain one: a migration must not change with the code."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    return False


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    # SQLite cannot alter most of a table; Alembic then copies it.
    render_as_batch=True,
    compare_type=True,
    render_item=render_item,
)
context.run_migrations()
