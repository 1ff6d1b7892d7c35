"""What tenants call the adapters that a worker knows by digest."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.registry.tables import Adapter, AdapterVersion
from loraplex.adapters.spec import AdapterKey
from loraplex.tenants.tables import Tenant

_MOST_AT_ONCE = 500
"""Values in one statement."""


async def names_of_tenants(session: AsyncSession, ids: Iterable[str]) -> Mapping[str, str]:
    """Return the names of those tenants that there are, by id."""
    names: dict[str, str] = {}
    for some in _parts(sorted(set(ids))):
        query = select(Tenant.id, Tenant.name).where(Tenant.id.in_(some))
        names.update((row[0], row[1]) for row in await session.execute(query))
    return names


async def names_of_adapters(
    session: AsyncSession, keys: Iterable[AdapterKey]
) -> Mapping[AdapterKey, str]:
    """Return `tenant/adapter@version` of those adapters that there are. If a tenant has the same
    bytes several times, a version that can be called goes before one that cannot, then one that is
    pinned, then the one published last."""
    wanted = set(keys)
    names: dict[AdapterKey, str] = {}
    for some in _parts(sorted({key.digest for key in wanted})):
        query = (
            select(Tenant.id, Tenant.name, Adapter.name, AdapterVersion)
            .join(Adapter, Adapter.tenant_id == Tenant.id)
            .join(AdapterVersion, AdapterVersion.adapter_id == Adapter.id)
            .where(AdapterVersion.digest.in_(some))
            .order_by(AdapterVersion.status == "ready", AdapterVersion.is_pinned, AdapterVersion.id)
        )
        # The last one of a key stays.
        for tenant_id, tenant, adapter, version in await session.execute(query):
            key = AdapterKey(tenant_id, version.digest)
            if key in wanted:
                names[key] = f"{tenant}/{adapter}@{version.number}"
    return names


def _parts(values: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(values), _MOST_AT_ONCE):
        yield values[start : start + _MOST_AT_ONCE]
