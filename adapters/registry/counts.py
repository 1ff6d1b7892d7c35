"""How many adapters tenants have."""

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.registry.tables import Adapter


async def adapters_by_tenant(session: AsyncSession) -> dict[str, int]:
    """Return the number of adapters, whatever their versions, by tenant id."""
    rows = await session.execute(
        select(Adapter.tenant_id, func.count()).group_by(Adapter.tenant_id)
    )
    return dict(rows.all())
