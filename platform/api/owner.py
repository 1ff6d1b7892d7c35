"""Whose things a request is about, and who makes it: what both APIs' routes ask for."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastapi import Request, params
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex.adapters.registry import aliases, registry
from loraplex.adapters.registry.names import AdapterName
from loraplex.platform.api.adapter_views import AdapterView
from loraplex.platform.api.views import AdapterVersionView
from loraplex.platform.deps import Admin, Caller, ServicesOf
from loraplex.platform.log import AccessLine
from loraplex.platform.permissions import caller_may, operator_may
from loraplex.platform.services import Services
from loraplex.tenants import directory
from loraplex.tenants.admin_keys import AdminPrincipal
from loraplex.tenants.api_keys import Principal
from loraplex.tenants.audit import Act, Actor, ActorKind
from loraplex.tenants.directory import TenantRecord
from loraplex.tenants.key_scopes import Grantor, of_platform
from loraplex.tenants.roles import Permission


@dataclass(frozen=True, slots=True)
class ResourceOwner:
    """A tenant, and whose key acts on its things."""

    tenant_id: str
    sender: Principal | AdminPrincipal
    request_id: str
    tenant_name: str

    @property
    def actor(self) -> Actor:
        """Who acts, for the audit log."""
        return actor_of(self.sender, self.request_id)

    def named(self, adapter: str) -> AdapterName:
        """One of its adapters."""
        return AdapterName(self.tenant_id, adapter)

    def act(self, services: Services) -> Act:
        """What is done now, for the audit log."""
        return Act(self.actor, services.now())

    def grantor(self, services: Services) -> Grantor:
        """The bounds of what may be given."""
        act = self.act(services)
        return (
            self.sender.as_grantor(act) if isinstance(self.sender, Principal) else of_platform(act)
        )


@dataclass(frozen=True, slots=True)
class Side:
    """One of both APIs: whose things its routes are about, and who may."""

    owner_of: Callable[..., Awaitable[ResourceOwner]]
    """A dependency: from a request to its owner."""
    may: Callable[[Permission], params.Depends]
    """Declares the permission of a route."""


def actor_of(sender: Principal | AdminPrincipal, request_id: str) -> Actor:
    """Whoever sent a request, for the audit log."""
    kind: ActorKind = "api_key" if isinstance(sender, Principal) else "admin_key"
    return Actor(kind, sender.key_id, request_id)


def act_of(request: Request, admin: AdminPrincipal, services: Services) -> Act:
    """What an operator does now, for the audit log."""
    return Act(actor_of(admin, AccessLine.of(request.scope).request_id), services.now())


async def caller_owns(request: Request, caller: Caller) -> ResourceOwner:
    """The tenant of the caller's key."""
    request_id = AccessLine.of(request.scope).request_id
    return ResourceOwner(caller.tenant_id, caller, request_id, caller.tenant_name)


async def tenant_owns(
    request: Request, tenant: str, admin: Admin, services: ServicesOf
) -> ResourceOwner:
    """The tenant of the path, and the operator. Raises TenantNotFound."""
    async with services.resources.database.reader() as session:
        found = await tenant_of(session, tenant)
    return ResourceOwner(found.id, admin, AccessLine.of(request.scope).request_id, found.name)


TENANTS = Side(caller_owns, caller_may)
OPERATORS = Side(tenant_owns, operator_may)


async def tenant_of(session: AsyncSession, named: str) -> TenantRecord:
    """The tenant of a path: by id or name, which differ, since no name has an underscore."""
    if "_" in named:
        return await directory.get(session, named)
    return await directory.get_by_name(session, named)


async def show_adapter(session: AsyncSession, name: AdapterName) -> AdapterView:
    """Show an adapter. Raises ModelNotFound."""
    versions = await registry.list_all_versions(session, name)
    named = await aliases.list_aliases(session, name.tenant_id, name.adapter)
    return AdapterView.of(versions, named)


async def show_version(session: AsyncSession, name: AdapterName, number: int) -> AdapterVersionView:
    """Show a version. Raises ModelNotFound."""
    return AdapterVersionView.of(await registry.get_version(session, name, number))
