"""What a tenant's adapters take in the store, and what may be added."""

from typing import Protocol

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.registry.errors import AdapterTooLarge, StorageLimitReached
from loraplex.adapters.registry.tables import Adapter, AdapterVersion
from loraplex.tenants.directory import adapter_limits
from loraplex.tenants.errors import TenantNotFound
from loraplex.tenants.limits import AdapterLimits
from loraplex.tenants.tables import Tenant


class Sized(Protocol):
    """An adapter, as far as limits ask."""

    @property
    def digest(self) -> str:
        """Of its bytes."""

    @property
    def rank(self) -> int:
        """Largest rank of its modules."""

    @property
    def num_modules(self) -> int:
        """Modules that it changes."""

    @property
    def num_bytes(self) -> int:
        """Of its tensors."""


async def check_limits(session: AsyncSession, tenant_id: str, adapter: Sized) -> None:
    """Refuse an adapter that the tenant's limits do not let in; until this transaction ends, no
    other of its adapters is let in.

    Raises:
        TenantNotFound: it is being deleted.
        AdapterTooLarge: its rank or its number of modules.
        StorageLimitReached: what it takes, beside what is there.
    """
    limits = await _limits(session, tenant_id)
    _check_shape(limits, adapter)
    limit = limits.adapter_storage_bytes
    if limit is None:
        return
    sizes = await _sizes(session, tenant_id)
    used = sum(sizes.values())
    if adapter.digest not in sizes and used + adapter.num_bytes > limit:
        raise StorageLimitReached(
            f"The adapter has {adapter.num_bytes} bytes, and the tenant's adapters take {used} of "
            f"the {limit} that they may (adapter_storage_bytes); delete versions that are not "
            "needed, or ask the operator for more."
        )


async def _limits(session: AsyncSession, tenant_id: str) -> AdapterLimits:
    # Its deletion waits for this transaction, and finds what that added.
    own = {"read": True, "key_share": True}
    tenant = await session.get_one(Tenant, tenant_id, with_for_update=own, populate_existing=True)
    if tenant.status in {"deleting", "deleted"}:
        raise TenantNotFound(f"The tenant {tenant_id} is being deleted.")
    limits = adapter_limits(tenant)
    if limits.adapter_storage_bytes is not None:
        # Two uploads at once would each find room for itself.
        tenant = await session.get_one(
            Tenant, tenant_id, with_for_update={"key_share": True}, populate_existing=True
        )
    return adapter_limits(tenant)


def _check_shape(limits: AdapterLimits, adapter: Sized) -> None:
    most_rank, most_modules = limits.adapter_max_rank, limits.adapter_max_modules
    if most_rank is not None and adapter.rank > most_rank:
        raise AdapterTooLarge(
            f"The adapter's rank is {adapter.rank}, but the tenant's limit is {most_rank} "
            "(adapter_max_rank); train it with a smaller r."
        )
    if most_modules is not None and adapter.num_modules > most_modules:
        raise AdapterTooLarge(
            f"The adapter changes {adapter.num_modules} modules, but the tenant's limit is "
            f"{most_modules} (adapter_max_modules); train it with fewer target_modules."
        )


async def _sizes(session: AsyncSession, tenant_id: str) -> dict[str, int]:
    query = (
        select(AdapterVersion.digest, func.max(AdapterVersion.num_bytes))
        .join(Adapter, Adapter.id == AdapterVersion.adapter_id)
        .where(Adapter.tenant_id == tenant_id, AdapterVersion.status != "deleted")
        .group_by(AdapterVersion.digest)
    )
    return dict((await session.execute(query)).all())
