"""The end of a tenant: asked for once, finished by any gateway, whoever dies on the way.

    active | suspended ── begin ──> deleting ── advance, until nothing runs ──> deleted

`begin` ends what can be used: keys are refused, adapters are deleted by force, uploads cancelled.
`advance` waits for open requests to be in the ledger and for adapters to be gone, and then takes
away what is personal or a label of the tenant's own. The rows that the ledger and the audit log
name stay, under the tenant's id; its name is free.
"""

from datetime import datetime

from sqlalchemy import delete, exists, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.registry import life_cycle
from loraplex.adapters.registry.names import AdapterName
from loraplex.adapters.registry.tables import Adapter, AdapterUpload, AdapterVersion
from loraplex.adapters.registry.uploads import OPEN
from loraplex.tenants import audit
from loraplex.tenants.audit import Act
from loraplex.tenants.erasure import erase
from loraplex.tenants.errors import TenantNotFound
from loraplex.tenants.quota_tables import IntentRow
from loraplex.tenants.tables import ApiKey, Tenant


async def begin(session: AsyncSession, act: Act, tenant_id: str) -> None:
    """Begin to delete a tenant; no effect if that was begun before.

    Raises:
        TenantNotFound: there is none.
    """
    tenant = await _locked(session, tenant_id)
    if tenant.status in {"deleting", "deleted"}:
        return
    tenant.status = "deleting"
    await session.execute(
        update(ApiKey)
        .where(ApiKey.tenant_id == tenant_id, ApiKey.revoked_at.is_(None))
        .values(revoked_at=act.at)
        .execution_options(synchronize_session=False)
    )
    await audit.append(session, act, tenant_id, "tenant.delete", tenant.name)
    await _delete_adapters(session, act, tenant_id)
    await _cancel_uploads(session, act.at, tenant_id)


async def unfinished(session: AsyncSession) -> list[str]:
    """Ids of the tenants that are being deleted."""
    return list(await session.scalars(select(Tenant.id).where(Tenant.status == "deleting")))


async def advance(session: AsyncSession, tenant_id: str, now: datetime) -> bool:
    """Do what can be done now; true if the tenant is deleted, by this call or before."""
    tenant = await _locked(session, tenant_id)
    if tenant.status != "deleting":
        return tenant.status == "deleted"
    # An upload that was on its way when the deletion began may have been published since.
    await _cancel_uploads(session, now, tenant_id)
    if await _delete_adapters(session, Act(audit.PLATFORM, now), tenant_id):
        return False
    if await session.scalar(select(exists().where(IntentRow.tenant_id == tenant_id))):
        return False
    await _strip_adapters(session, tenant_id)
    await audit.append(session, Act(audit.PLATFORM, now), tenant_id, "tenant.deleted", tenant_id)
    await erase(session, tenant, now)
    return True


async def _locked(session: AsyncSession, tenant_id: str) -> Tenant:
    """The tenant's row, so that nobody adds anything to it until this transaction ends."""
    query = select(Tenant).where(Tenant.id == tenant_id).with_for_update()
    tenant = await session.scalar(query.execution_options(populate_existing=True))
    if tenant is None:
        raise TenantNotFound(f"There is no tenant {tenant_id[:60]!r}.")
    return tenant


async def _delete_adapters(session: AsyncSession, act: Act, tenant_id: str) -> bool:
    """Begin to delete all that is there; false if nothing is."""
    query = (
        select(Adapter.name)
        .join(AdapterVersion, AdapterVersion.adapter_id == Adapter.id)
        .where(Adapter.tenant_id == tenant_id, AdapterVersion.status != "deleted")
        .distinct()
        .order_by(Adapter.name)
    )
    names = list(await session.scalars(query))
    for name in names:
        await life_cycle.delete_adapter(session, act, AdapterName(tenant_id, name), "force")
    return bool(names)


async def _cancel_uploads(session: AsyncSession, now: datetime, tenant_id: str) -> None:
    mine = (AdapterUpload.tenant_id == tenant_id) & AdapterUpload.status.in_(OPEN)
    await session.execute(
        update(AdapterUpload)
        .where(mine)
        .values(status="cancelled", updated_at=now)
        .execution_options(synchronize_session=False)
    )


async def _strip_adapters(session: AsyncSession, tenant_id: str) -> None:
    """Keep of adapters what invoices name: a name, a number, a digest."""
    await session.execute(delete(AdapterUpload).where(AdapterUpload.tenant_id == tenant_id))
    mine = select(Adapter.id).where(Adapter.tenant_id == tenant_id)
    await session.execute(
        update(AdapterVersion)
        .where(AdapterVersion.adapter_id.in_(mine))
        .values(profile=None, self_test=None, warnings=None)
        .execution_options(synchronize_session=False)
    )
