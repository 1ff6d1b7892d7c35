"""Profiles of adapter versions, by digest."""

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.errors import AdapterMissing
from loraplex.adapters.profile import Profile, decode
from loraplex.adapters.registry.tables import Adapter, AdapterVersion


async def read_profile(session: AsyncSession, tenant_id: str, digest: str) -> Profile:
    """The profile of a tenant's version. The digest covers it, so whichever name of the tenant has
    the digest has the same.

    Raises:
        AdapterMissing: the tenant has no such version.
    """
    rows = (
        select(AdapterVersion.profile)
        .join(Adapter, Adapter.id == AdapterVersion.adapter_id)
        .where(Adapter.tenant_id == tenant_id, AdapterVersion.digest == digest)
        .limit(1)
    )
    found = (await session.execute(rows)).one_or_none()
    if found is None:
        raise AdapterMissing(digest)
    return decode(found[0])
